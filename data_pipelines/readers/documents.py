"""Defines documents and ranges of files, reads and cleans the lines of a range, and reads plain text."""

import collections
import contextlib
import dataclasses
import html
import re
from collections.abc import Iterator
from typing import BinaryIO

from bert_jax.errors import UserError
from bert_jax.io.compression import opened

MAX_LINE_BYTES = 1 << 20  # longer lines are split, so that one line cannot fill the memory
MAX_DOCUMENT_BYTES = 8 << 20  # longer documents, which often lack their blank lines, are split too
HEAD_BYTES = 512  # bytes of a file that `check_head` needs
_BOM = b"\xef\xbb\xbf"
# First bytes of UTF-16, gzip, bzip2, xz, zstandard, zip, PDF, Parquet and Arrow files.
_MAGIC = tuple(
    map(
        bytes.fromhex,
        "fffe feff 1f8b 425a68 fd377a585a 28b52ffd 504b0304 25504446 50415231 4152524f57".split(),
    )
)


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document."""

    key: str  # the same in every run: its URL or id, or its file and byte offset
    passages: tuple[str, ...]  # its sentences, or its paragraphs if they are not split yet; none is blank
    presplit: bool  # whether the passages are sentences
    part: int = 0  # the number of this part of a document of over MAX_DOCUMENT_BYTES

    @property
    def whole_key(self) -> str:
        """The key of the document to which this part belongs."""
        return self.key.removesuffix(f"#{self.part}") if self.part else self.key

    @property
    def size(self) -> int:
        """The size of its text in UTF-8, in bytes."""
        return sum(map(utf8_size, self.passages))


def utf8_size(text: str) -> int:
    """Returns the size of a text in UTF-8, in bytes; a lone surrogate has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents that start at bytes (of a TFDS data set, Parquet or Arrow: records) [start, end)."""

    path: str  # the file, or a TFDS data set as `bert_jax.io.tfds.find` names it
    name: str  # does not depend on the folder of the corpus; part of document keys
    start: int
    end: int | None  # None for a compressed file that is one range
    size: int  # in the file, in bytes


# Control characters that are not whitespace, and whitespace ones, except tabs and line ends.
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")
_SPACING_CONTROLS = re.compile("[\x0b\x0c\x1c-\x1f\x85]")


def without_controls(text: str, spaces: bool) -> tuple[str, int]:
    """Returns a text without control characters, and how many were dropped or replaced; see `clean`."""
    if text.isprintable():
        return text, 0
    kept = _CONTROLS.sub("", text)
    cleaned, spacing = _SPACING_CONTROLS.subn(" " * spaces, kept)
    return cleaned, len(text) - len(kept) + spacing


_HUGE_REFERENCE = re.compile(r"&#\d{1000,};?")  # html.unescape raises an error for them


def unescape(text: str) -> str:
    """Returns `html.unescape(text)`, with U+FFFD for numbers of 1,000 digits or more."""
    return html.unescape(_HUGE_REFERENCE.sub("\ufffd", text))


def decode(data: bytes, counts: collections.Counter[str]) -> str:
    """Decodes UTF-8; undecodable bytes become U+FFFD and are counted."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        counts["undecodable"] += text.count("\ufffd") - data.count("\ufffd".encode())
        return text


def decode_line(data: bytes, counts: collections.Counter[str], spaces: bool) -> str:
    """Decodes and cleans a line; see `decode` and `clean`."""
    return clean(decode(data, counts), counts, spaces)


def clean(text: str, counts: collections.Counter[str], spaces: bool) -> str:
    """Returns the text of one line without control characters and surrounding whitespace.

    With `spaces`, control characters that are whitespace, such as a form feed, become spaces. They are
    dropped otherwise, as in google-research/bert.
    """
    text = text.strip()
    if not text.isprintable():
        text, number = without_controls(text, spaces)
        counts["control_characters"] += number
        text = text.strip().replace("\t", " ").replace("\r", " ")
    return text


def split_long(line: str, most: int) -> Iterator[str]:
    """Splits a line into strings of at most `most` characters, at spaces where possible."""
    start, end = 0, len(line)
    while end - start > most:
        place = line.rfind(" ", start, start + most) + 1 or start + most
        yield line[start:place].strip()
        start, end = place, len(line.rstrip()) if start == 0 else end
        while start < end and line[start].isspace():
            start += 1
    if start < end:
        yield line[start:end]


def text_document(key: str, text: str, counts: collections.Counter[str], spaces: bool) -> Iterator[Document]:
    """Yields the document of a text whose lines are paragraphs, in parts if it is long."""
    passages = Passages(key, False, counts)
    for line in text.split("\n"):
        cleaned = clean(line, counts, spaces)
        counts["long_lines"] += len(cleaned) > MAX_LINE_BYTES
        for paragraph in split_long(cleaned, MAX_LINE_BYTES):
            yield from passages.add(paragraph, len(paragraph))
    yield from passages.rest()


class Passages:
    """Collects the passages of one document, and splits it into parts if it is too long."""

    def __init__(self, key: str, presplit: bool, counts: collections.Counter[str]):
        self._key, self._presplit, self._counts = key, presplit, counts
        self._passages: list[str] = []
        self._size = self._part = 0

    def add(self, text: str, size: int) -> Iterator[Document]:
        """Adds a passage of `size` bytes; first yields a part if the document would become too long."""
        if self._size + size > MAX_DOCUMENT_BYTES and self._passages:
            self._counts["long_documents"] += self._part == 0
            yield from self.rest()
        self._passages.append(text)
        self._size += size

    def rest(self) -> Iterator[Document]:
        """Yields a document of the passages added since the last part, if there are any."""
        if self._passages:
            key = f"{self._key}#{self._part}" if self._part else self._key
            yield Document(key, tuple(self._passages), self._presplit, self._part)
            self._passages, self._size, self._part = [], 0, self._part + 1


def check_head(head: bytes, path: str) -> None:
    """Raises UserError if the first HEAD_BYTES of a file, decompressed, are not UTF-8 text."""
    if head.startswith(_MAGIC) or head[257:262] == b"ustar":  # of a tar header (POSIX.1)
        raise UserError(
            f"{path}: expected text in UTF-8, or a suffix that names its format; found {head[:8]!r}"
        )


@contextlib.contextmanager
def open_lines(
    range_: Range, counts: collections.Counter[str], longest: int = MAX_LINE_BYTES
) -> Iterator["Lines"]:
    """Opens the lines of a range; on exit, adds the number of bytes read to `counts`."""
    with opened(range_.path) as file:
        lines = Lines(file, range_, counts, longest)
        yield lines
        counts["bytes"] += lines.offset - lines.first


@dataclasses.dataclass(slots=True)
class Line:
    """A line, or a section of a long one; `begins` and `ends` tell which ends of the line it has."""

    offset: int  # in the file, in bytes
    data: bytes
    begins: bool
    ends: bool


class Lines:
    """Iterates over the lines that begin at or after the start of a range, until the end of the file."""

    def __init__(self, file: BinaryIO, range_: Range, counts: collections.Counter[str], longest: int):
        self._file, self._counts, self._longest = file, counts, longest
        head = file.read(HEAD_BYTES)
        check_head(head, range_.path)
        self.data_start = len(_BOM) if head.startswith(_BOM) else 0
        self.first = self.offset = self._seek_line(max(range_.start, self.data_start))
        self._carry = b""

    def _seek_line(self, offset: int) -> int:
        """Moves to the first line that begins at or after an offset, and returns its offset."""
        if offset == self.data_start:
            self._file.seek(offset)
            return offset
        offset -= 1
        self._file.seek(offset)
        while data := self._file.readline(MAX_LINE_BYTES):
            offset += len(data)
            if data.endswith(b"\n"):
                break
        return offset

    def __iter__(self) -> Iterator[Line]:
        begins = True
        while data := self._carry + self._file.readline(self._longest - len(self._carry)):
            self._carry = b""
            ends = data.endswith(b"\n") or len(data) < self._longest
            if not ends:
                data, self._carry = _cut_bytes(data)
                self._counts["long_lines"] += begins
            offset = self.offset
            self.offset += len(data)
            yield Line(offset, data, begins, ends)
            begins = ends


def _cut_bytes(data: bytes) -> tuple[bytes, bytes]:
    """Cuts a long line near its end: after a space if there is one, and never inside a character."""
    place = data.rfind(b" ", len(data) - 4096) + 1
    if not place:
        place = len(data)
        while place > len(data) - 4 and data[place - 1] & 0xC0 == 0x80:
            place -= 1
        if place > len(data) - 4 and data[place - 1] & 0xC0 == 0xC0:
            place -= 1
    return data[:place], data[place:]


def read_text(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool, presplit: bool = True
) -> Iterator[Document]:
    """Yields the documents whose preceding blank line, or the start of the file, is in a range."""
    with open_lines(range_, counts) as lines:
        owned = lines.offset == lines.data_start and (range_.end is None or lines.offset < range_.end)
        document: Passages | None = None
        # Lines outside the documents of this range are counted in the ranges to which they belong.
        ignored: collections.Counter[str] = collections.Counter()
        for line in lines:
            inside = range_.end is None or line.offset < range_.end
            text = decode_line(line.data, counts if document or owned else ignored, spaces)
            if not text and line.begins and line.ends and not line.data.decode("utf-8", "replace").strip():
                if document:
                    yield from document.rest()
                document, owned = None, inside
            elif owned:
                document, owned = Passages(f"{range_.name}:{line.offset}", presplit, counts), False
            if document and text:
                yield from document.add(text, len(line.data))
            elif not (document or owned or inside):
                return
        if document:
            yield from document.rest()
