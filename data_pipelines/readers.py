"""Corpora as documents: `text` and `wikiextractor` files, plain or compressed, by byte ranges, streamed.

A plain file is cut into byte ranges for several workers. A range owns the documents that start in it and
reads the last of them to its end, so the documents of a file are the same however it is cut. Text is
cleaned on the way: undecodable bytes become U+FFFD, control characters are dropped; `counts` of
`read_documents` says how many.
"""

import bz2
import collections
import dataclasses
import glob
import gzip
import html
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from bert_jax.errors import UserError

MAX_LINE_BYTES = 1 << 20  # longer lines are cut, so that one line can't fill the memory
MAX_DOCUMENT_BYTES = 8 << 20  # longer documents, often ones that lack their blank lines, are cut too

_OPENERS: dict[str, Callable[[str], BinaryIO]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_MAGIC = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\x00": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
}
_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents of a file that start at bytes [start, end) of it.

    Attributes:
        path: The file.
        name: A short name of the file, the same wherever the corpus lies; part of the keys of documents.
        start: First byte.
        end: The byte after the last; None in a compressed file, which is one range.
        size: How many bytes of the file this is.
    """

    path: str
    name: str
    start: int
    end: int | None
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        key: Names the document, and is the same on every run: its URL or id, or its file and byte offset.
        passages: Its sentences, or paragraphs that are still to be split; none of them is blank.
        presplit: Whether the passages are sentences.
        part: 0, or, in a document of over MAX_DOCUMENT_BYTES, the number of this part of it.
    """

    key: str
    passages: tuple[str, ...]
    presplit: bool
    part: int = 0


def list_inputs(globs: str | Sequence[str]) -> list[str]:
    """The files that patterns match, sorted, each once.

    Args:
        globs: Patterns, or one string of patterns separated by commas; ** matches folders in folders, and a
            folder stands for all the files under it that aren't hidden.

    Raises:
        UserError: A pattern matches no file, all the files are empty, or one is of a kind that isn't read.
    """
    patterns = [globs] if isinstance(globs, str) else list(globs)
    patterns = [p for text in patterns for p in ([text] if os.path.exists(text) else text.split(",")) if p]
    if not patterns:
        raise UserError("no input given; expected files or patterns such as --input='corpus/*.txt'")
    paths: set[str] = set()
    for pattern in patterns:
        if "://" in pattern:
            raise UserError(f"{pattern} is not a local path; copy the corpus to this machine's disk first")
        found = [os.fspath(pattern)] if os.path.exists(pattern) else glob.glob(pattern, recursive=True)
        files = [file for path in found for file in _files_under(path)]
        if not files:
            raise UserError(f"no input file matches {pattern!r} (from {os.getcwd()}); expected text files")
        paths.update(files)
    for path in sorted(paths):
        if path.endswith((".zst", ".zip", ".7z", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")):
            raise UserError(f"can't read {path}; expected plain text, .gz, .bz2 or .xz: unpack it first")
    if not any(os.path.getsize(path) for path in paths):
        raise UserError(f"all of the {len(paths)} input files are empty, {min(paths)} first; expected text")
    return sorted(paths)


def _files_under(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [os.path.join(folder, name) for name in names if not name.startswith(".")]
    return found


def split_ranges(paths: Sequence[str], target_bytes: int) -> list[Range]:
    """Cuts files into ranges of about `target_bytes`; empty files give none, compressed ones one each.

    The ranges depend on the files' sizes and `target_bytes` alone. Read in this order, they give the
    documents in the order of the files.
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes must be positive, not {target_bytes}")
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths]) if paths else ""
    ranges = []
    for path in paths:
        name = os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/")
        size = os.path.getsize(path)
        if os.path.splitext(path)[1] in _OPENERS:
            ranges += [Range(path, name, 0, None, size)] if size else []
            continue
        number = -(-size // target_bytes)
        edges = [size * i // number for i in range(number + 1)] if number else []
        ranges += [Range(path, name, a, b, b - a) for a, b in zip(edges, edges[1:], strict=False)]
    return ranges


def read_documents(
    range_: Range, format: str, counts: collections.Counter[str] | None = None
) -> Iterator[Document]:
    """Yields the documents that start in a range, in file order.

    Memory: at most one document, of at most MAX_DOCUMENT_BYTES, and one line.

    Args:
        range_: A range of `split_ranges`.
        format: One of FORMATS: "text" has a sentence a line and a blank line between documents, as
            google-research/bert reads; "wikiextractor" has <doc ...> and </doc> lines around the paragraphs.
        counts: What was met is added to it: "documents", "bytes", "undecodable" (bytes or runs of them that
            became U+FFFD), "control_characters" dropped, "long_lines" and "long_documents" cut, "unclosed"
            <doc> elements, "outside" lines outside of <doc> elements (at least: a cut can hide some).

    Raises:
        UserError: An unknown format, or a file that is not UTF-8 text or not the archive its name says.
        OSError: The file can't be read.
    """
    if format not in FORMATS:
        raise UserError(f"unknown input format {format!r}; expected one of {', '.join(FORMATS)}")
    counts = collections.Counter() if counts is None else counts
    opener = _OPENERS.get(os.path.splitext(range_.path)[1])
    try:
        with opener(range_.path) if opener else open(range_.path, "rb") as file:
            lines = _Lines(file, range_, counts)
            for document in FORMATS[format](lines, range_, counts):
                counts["documents"] += document.part == 0
                yield document
            counts["bytes"] += lines.offset - lines.first
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise _broken_archive(range_.path, error) from None
    except OSError as error:
        if opener and error.errno is None:  # how bz2 says that its data are not
            raise _broken_archive(range_.path, error) from None
        raise


def _broken_archive(path: str, error: Exception) -> UserError:
    kind = os.path.splitext(path)[1]
    return UserError(f"{path} is cut short or not a {kind} file ({error}); compress or copy it again")


@dataclasses.dataclass(slots=True)
class _Line:
    """A line, or a piece of one that is too long: its offset and bytes; whether it begins and ends a line."""

    offset: int
    data: bytes
    begins: bool
    ends: bool


class _Lines:
    """Iterates over the lines that begin at or after the start of a range, to the end of the file."""

    def __init__(self, file: BinaryIO, range_: Range, counts: collections.Counter[str]):
        self._file, self._counts = file, counts
        head = file.read(8)
        self._check(head, range_.path)
        self.data_start = len(_BOM) if head.startswith(_BOM) else 0
        self.first = self.offset = self._seek_line(max(range_.start, self.data_start), head)
        self._carry = b""

    @staticmethod
    def _check(head: bytes, path: str) -> None:
        if head.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise UserError(f"{path} is UTF-16; expected UTF-8: convert it with `iconv -f UTF-16 -t UTF-8`")
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                raise UserError(
                    f"{path} is compressed ({kind}) text or an archive, and its name does not say so; "
                    "expected plain text, or .gz, .bz2 or .xz at the end of the name"
                )

    def _seek_line(self, offset: int, head: bytes) -> int:
        """Moves to the first line that begins at or after an offset."""
        if offset == self.data_start:
            self._file.seek(offset)
            return offset
        self._file.seek(offset - 1)
        offset -= 1
        while piece := self._file.readline(MAX_LINE_BYTES):
            offset += len(piece)
            if piece.endswith(b"\n"):
                break
        return offset

    def previous_is_blank(self) -> bool:
        """Whether the line before the first one is blank or missing; called before the first is read."""
        here, end = self.offset, self.offset - 1
        blank, tail, step = True, b"", 256
        while blank and end > self.data_start and b"\n" not in tail and len(tail) <= MAX_LINE_BYTES:
            begin, step = max(self.data_start, end - step), 2 * step
            self._file.seek(begin)
            tail = self._file.read(end - begin) + tail
            # Bytes that no whitespace has end the search at once: in most files, at the first.
            blank = not tail.rpartition(b"\n")[2].translate(None, _WHITESPACE_BYTES)
            end = begin
        self._file.seek(here)
        line = tail.rpartition(b"\n")[2]
        return blank and len(line) < MAX_LINE_BYTES and not line.decode("utf-8", "replace").strip()

    def __iter__(self) -> Iterator[_Line]:
        begins = True
        while data := self._carry + self._file.readline(MAX_LINE_BYTES - len(self._carry)):
            self._carry = b""
            ends = data.endswith(b"\n") or len(data) < MAX_LINE_BYTES
            if not ends:
                data, self._carry = _cut(data)
                self._counts["long_lines"] += begins
            offset = self.offset
            self.offset += len(data)
            yield _Line(offset, data, begins, ends)
            begins = ends


def _cut(data: bytes) -> tuple[bytes, bytes]:
    """Cuts a piece of a line near its end, after a space where there is one, and never inside a character."""
    place = data.rfind(b" ", len(data) - 4096) + 1
    if not place:
        place = len(data)
        while place > len(data) - 4 and data[place - 1] & 0xC0 == 0x80:
            place -= 1
        if place > len(data) - 4 and data[place - 1] & 0xC0 == 0xC0:
            place -= 1
    return data[:place], data[place:]


_WHITESPACE_BYTES = bytes({byte for c in range(0x3001) if chr(c).isspace() for byte in chr(c).encode()})
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")


def _decode(data: bytes, counts: collections.Counter[str]) -> str:
    """Text of a line without the control characters and the whitespace around it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        counts["undecodable"] += text.count("\ufffd") - data.count("\ufffd".encode())
    text = text.strip()
    if not text.isprintable():
        cleaned = _CONTROLS.sub("", text)
        counts["control_characters"] += len(text) - len(cleaned)
        text = cleaned.strip().replace("\t", " ").replace("\r", " ")
    return text


class _Passages:
    """Collects the passages of one document and gives it in parts when it is too long."""

    def __init__(self, key: str, presplit: bool, counts: collections.Counter[str]):
        self._key, self._presplit, self._counts = key, presplit, counts
        self._passages: list[str] = []
        self._size = self._part = 0

    def add(self, text: str, size: int) -> Iterator[Document]:
        """Adds a passage; yields a part when the document is full."""
        if self._size + size > MAX_DOCUMENT_BYTES and self._passages:
            self._counts["long_documents"] += self._part == 0
            yield from self.rest()
        self._passages.append(text)
        self._size += size

    def rest(self) -> Iterator[Document]:
        """Yields what has been added, if anything."""
        if self._passages:
            key = f"{self._key}#{self._part}" if self._part else self._key
            yield Document(key, tuple(self._passages), self._presplit, self._part)
            self._passages, self._size, self._part = [], 0, self._part + 1


def _text_documents(lines: _Lines, range_: Range, counts: collections.Counter[str]) -> Iterator[Document]:
    after_blank = lines.offset == lines.data_start or lines.previous_is_blank()
    document: _Passages | None = None
    # The lines around the documents of this range are counted by the ranges that own them.
    ignored: collections.Counter[str] = collections.Counter()
    for line in lines:
        inside = range_.end is None or line.offset < range_.end
        text = _decode(line.data, counts if document or (after_blank and inside) else ignored)
        if not text and line.begins and line.ends and not line.data.decode("utf-8", "replace").strip():
            if document:
                yield from document.rest()
                document = None
            after_blank = True
            continue
        if document is None and not inside:
            return
        if after_blank and line.begins:
            document = _Passages(f"{range_.name}:{line.offset}", True, counts)
        after_blank = False
        if document and text:
            yield from document.add(text, len(line.data))
    if document:
        yield from document.rest()


_TITLE = re.compile(r'title="(.*?)"\s*(?:\w+="|>\s*$)')
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_TAG = re.compile(
    r"</?(?:b|big|blockquote|br|center|code|dd|dfn|div|dl|dt|em|font|gallery|hr|i|imagemap|li|nowiki|ol|p|poem|pre|"
    r"ref|references|s|score|small|span|strong|sub|sup|table|tbody|td|th|tr|tt|u|ul)\b[^<>]*>",
    re.IGNORECASE,
)


def _wikiextractor_documents(
    lines: _Lines, range_: Range, counts: collections.Counter[str]
) -> Iterator[Document]:
    document: _Passages | None = None
    title = ""
    within = range_.start == 0  # else the first lines are of a document that started in an earlier range
    for line in lines:
        if line.begins and line.data.startswith(b"<doc ") and line.data.rstrip().endswith(b">"):
            if document:
                counts["unclosed"] += 1
                yield from document.rest()
                document = None
            if range_.end is not None and line.offset >= range_.end:
                return
            header = _decode(line.data, counts)
            attributes = dict(_ATTRIBUTE.findall(header))
            within = True
            found = _TITLE.search(header)
            title = html.unescape(found[1]).strip() if found else ""
            key = attributes.get("url") or attributes.get("id") or f"{range_.name}:{line.offset}"
            document = _Passages(html.unescape(key), False, counts)
            continue
        if document is None:
            if range_.end is not None and line.offset >= range_.end:
                return
            counts["outside"] += within and bool(line.data.strip())
            continue
        closes = line.ends and line.data.rstrip().endswith(b"</doc>")
        text = _decode(line.data, counts)
        if closes:
            text = text.removesuffix("</doc>").rstrip()
        if "<" in text:
            text = _TAG.sub("", text).strip()
        if "&" in text:
            text = html.unescape(text)
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


FORMATS: dict[str, Callable[[_Lines, Range, collections.Counter[str]], Iterator[Document]]] = {
    "text": _text_documents,
    "wikiextractor": _wikiextractor_documents,
}
