"""Reads articles of Wikipedia: dumps of MediaWiki (pages-articles), and the output of WikiExtractor."""

import bz2
import collections
import itertools
import re
from collections.abc import Iterator
from xml.sax import saxutils

from bert_jax.errors import UserError
from bert_jax.io import compression
from bert_jax.io.compression import opened
from bert_jax.io.files import open_read
from data_pipelines.readers import wikitext
from data_pipelines.readers.documents import (
    Document,
    Passages,
    Range,
    check_head,
    clean,
    decode_line,
    open_lines,
    text_document,
    unescape,
)

MAX_PAGE_BYTES = 8 << 20  # MediaWiki accepts at most 2 MB; the rest of a longer page is dropped
_LONGEST_TEXT = 4 << 20  # characters
_CHUNK = 1 << 20
_OPEN, _CLOSE = b"<page>", b"</page>"
_HEADER_BYTES = 1 << 16
_NAMESPACE = re.compile(rb'<namespace key="(-2|6|14)"[^<>]*>([^<>]{1,100})</namespace>')
_NS = re.compile(rb"<ns>\s{0,9}(-?\d{1,9})\s{0,9}</ns>")
_ID = re.compile(rb"<id>\s{0,9}(\d{1,18})\s{0,9}</id>")
_TITLE = re.compile(rb"<title>([^<]{0,1000})</title>")
_TEXT = re.compile(rb"<text(?:\s[^<>]*)?>")
_REDIRECT = re.compile(r"\s*#redirect\b", re.IGNORECASE)
_DISAMBIGUATION = re.compile(
    r"__DISAMBIG__|\{\{\s{0,9}(?:[\w -]{0,60}\bdisambig(?:uation)?(?:[ -](?:page|cleanup))?|dab|geodis|hndis|"
    r"numberdis|mathdab|roaddis|schooldis|hospitaldis|callsigndis)\s*(?:\||\}\})",
    re.IGNORECASE,
)
_DOC_TITLE = re.compile(r'title="(.*?)"\s*(?:\w+="|>\s*$)')
_ATTRIBUTE = re.compile(r'(?<!\w)(\w++)="([^"]*)"')
_HTML_TAG = re.compile(
    r"</?(?:b|big|blockquote|br|center|code|dd|dfn|div|dl|dt|em|font|gallery|hr|i|imagemap|li|nowiki|ol|p|poem|pre|"
    r"ref|references|s|score|small|span|strong|sub|sup|table|tbody|td|th|tr|tt|u|ul)\b[^<>]*>",
    re.IGNORECASE,
)


def read_xml(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the articles of a dump that start in a range; their keys are the page ids.

    A plain dump may be split at any byte, and a .bz2 file of several streams where a stream begins.
    Redirects, disambiguation pages and pages outside the article namespace are counted and dropped.
    """
    with compression.errors(range_.path):
        hidden = _hidden_namespaces(range_)
        for page in _pages(_chunks(range_), counts):
            counts["bytes"] += len(page)
            yield from _documents(page, counts, spaces, hidden)


def _hidden_namespaces(range_: Range) -> frozenset[str]:
    """Returns the names of hidden namespaces, in English and in the dump's header, in lower case."""
    with opened(range_.path) as file:
        head = file.read(_HEADER_BYTES)
    check_head(head, range_.path)
    if b"<" not in head:
        raise UserError(f"{range_.path}: expected XML with --input_format=wikipedia_xml")
    names = {name.decode("utf-8", "replace").lower() for _, name in _NAMESPACE.findall(head)}
    return wikitext.HIDDEN_NAMESPACES | names


def _chunks(range_: Range) -> Iterator[tuple[bytes, bool]]:
    """Yields (bytes, whether they belong to the range) from the start of a range to the end of the file."""
    if compression.suffix(range_.path) == ".bz2":
        yield from _bzip2_chunks(range_)
        return
    with opened(range_.path) as file:
        file.seek(range_.start)
        place = range_.start
        while True:
            own = range_.end is None or place < range_.end
            data = file.read(_CHUNK if range_.end is None or not own else min(_CHUNK, range_.end - place))
            if not data:
                return
            place += len(data)
            yield data, own


def _bzip2_chunks(range_: Range) -> Iterator[tuple[bytes, bool]]:
    with open_read(range_.path) as file:
        file.seek(range_.start)
        start, waiting = range_.start, b""
        unpacker = bz2.BZ2Decompressor()
        while True:
            if unpacker.eof:
                waiting = unpacker.unused_data
                start = file.tell() - len(waiting)
                waiting = waiting or file.read(1 << 16)
                if not waiting.startswith(b"B"):
                    return  # the end of the file, or trailing bytes, which other tools ignore too
                unpacker = bz2.BZ2Decompressor()
            elif unpacker.needs_input and not waiting:
                waiting = file.read(1 << 16)
                if not waiting:
                    raise EOFError("the last stream has no end")
            data = unpacker.decompress(waiting, _CHUNK)
            waiting = b""
            if data:
                yield data, range_.end is None or start < range_.end


def _pages(chunks: Iterator[tuple[bytes, bool]], counts: collections.Counter[str]) -> Iterator[bytes]:
    """Yields the <page> elements that start in the chunks of the range, truncated if they are too long."""
    buffer, own_end = b"", 0  # own_end: the end of the range's own bytes in the buffer
    for data, own in itertools.chain(chunks, [(b"", False)]):
        buffer += data
        own_end = len(buffer) if own else own_end
        while (begin := buffer.find(_OPEN)) >= 0:
            if begin >= own_end:
                return
            close, following = buffer.find(_CLOSE, begin), buffer.find(_OPEN, begin + len(_OPEN))
            if close >= 0 and not 0 <= following < close:
                end = close + len(_CLOSE)
            elif following >= 0 or not data:
                counts["unclosed"] += 1
                end = following if following >= 0 else len(buffer)
            elif len(buffer) - begin > MAX_PAGE_BYTES:
                end = len(buffer)
            else:
                break
            counts["long_documents"] += end - begin > MAX_PAGE_BYTES
            end = min(end, begin + MAX_PAGE_BYTES)
            yield buffer[begin:end]
            buffer, own_end = buffer[end:], own_end - end
        else:  # only the beginning of a tag may be left
            drop = max(0, len(buffer) - len(_OPEN) + 1)
            buffer, own_end = buffer[drop:], own_end - drop
            if buffer and own_end <= 0:
                return


def _documents(
    page: bytes, counts: collections.Counter[str], spaces: bool, hidden: frozenset[str]
) -> Iterator[Document]:
    revision = page.find(b"<revision")
    head = page[: revision if revision >= 0 else _HEADER_BYTES]
    namespace, number, opening = _NS.search(head), _ID.search(head), None
    for opening in _TEXT.finditer(page):  # noqa: B007 (the last one, of the newest revision)
        pass
    if number is None or opening is None:
        counts["broken_pages"] += 1
        return
    if namespace is not None and int(namespace[1]):
        counts["other_namespaces"] += 1
        return
    if opening[0].endswith(b"/>"):
        counts["empty_pages"] += 1
        return
    end = page.find(b"</text>", opening.end())
    text = decode_line(page[opening.end() : end if end >= 0 else len(page)], counts, spaces)
    text = saxutils.unescape(text[:_LONGEST_TEXT], {"&quot;": '"', "&apos;": "'", "&#039;": "'"})
    if b"<redirect" in head or _REDIRECT.match(text):
        counts["redirects"] += 1
        return
    title = _TITLE.search(head)
    if _DISAMBIGUATION.search(text) or (title and title[1].endswith(b"(disambiguation)")):
        counts["disambiguations"] += 1
        return
    paragraphs = "\n".join(wikitext.paragraphs(text, hidden, counts))
    if not paragraphs:
        counts["empty_pages"] += 1
    yield from text_document(number[1].decode(), paragraphs, counts, spaces)


def read_extracted(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the documents of WikiExtractor's <doc ...> and </doc> lines that start in a range."""
    with open_lines(range_, counts) as lines:
        document: Passages | None = None
        title = ""
        within = range_.start == 0  # else the first lines belong to a document of an earlier range
        for line in lines:
            if line.begins and line.data.startswith(b"<doc ") and line.data.rstrip().endswith(b">"):
                if document:
                    counts["unclosed"] += 1
                    yield from document.rest()
                    document = None
                if range_.end is not None and line.offset >= range_.end:
                    return
                header = decode_line(line.data, counts, spaces)
                attributes = dict(_ATTRIBUTE.findall(header))
                within = True
                # A search would try each of many.
                found = _DOC_TITLE.match(header, max(0, header.find('title="')))
                title = unescape(found[1]).strip() if found else ""
                key = attributes.get("url") or attributes.get("id") or f"{range_.name}:{line.offset}"
                document = Passages(unescape(key), False, counts)
                continue
            if document is None:
                if range_.end is not None and line.offset >= range_.end:
                    return
                counts["outside"] += within and bool(line.data.strip())
                continue
            closes = line.ends and line.data.rstrip().endswith(b"</doc>")
            text = decode_line(line.data, counts, spaces)
            if closes:
                text = text.removesuffix("</doc>").rstrip()
            if "<" in text:
                text = _HTML_TAG.sub("", text).strip()
            if "&" in text:
                # A reference may be one to a control character.
                text = clean(unescape(text), counts, spaces)
            if text and text != title:
                yield from document.add(text, len(line.data))
            if text:
                title = ""
            if closes:
                yield from document.rest()
                document = None
        if document:
            counts["unclosed"] += 1
            yield from document.rest()
