"""Reads the format `wikiextractor`: <doc ...> and </doc> lines around the paragraphs of a document."""

import collections
import re
from collections.abc import Iterator

from data_pipelines.readers.documents import (
    Controls,
    Document,
    Fields,
    Passages,
    Range,
    clean,
    decode_line,
    unescape,
)
from data_pipelines.readers.lines import open_lines

_TITLE = re.compile(r'title="(.*?)"\s*(?:\w+="|>\s*$)')
_ATTRIBUTE = re.compile(r'(?<!\w)(\w++)="([^"]*)"')
_TAG = re.compile(
    r"</?(?:b|big|blockquote|br|center|code|dd|dfn|div|dl|dt|em|font|gallery|hr|i|imagemap|li|nowiki|ol|p|poem|pre|"
    r"ref|references|s|score|small|span|strong|sub|sup|table|tbody|td|th|tr|tt|u|ul)\b[^<>]*>",
    re.IGNORECASE,
)


def read(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents that start in a range."""
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
                header = decode_line(line.data, counts, controls)
                attributes = dict(_ATTRIBUTE.findall(header))
                within = True
                # A search would try each of many.
                found = _TITLE.match(header, max(0, header.find('title="')))
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
            text = decode_line(line.data, counts, controls)
            if closes:
                text = text.removesuffix("</doc>").rstrip()
            if "<" in text:
                text = _TAG.sub("", text).strip()
            if "&" in text:
                # A reference may be one to a control character.
                text = clean(unescape(text), counts, controls)
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
