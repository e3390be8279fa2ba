"""Defines documents and ranges of documents, and cleans and splits the passages of documents."""

import collections
import dataclasses
import html
import re
from collections.abc import Iterable, Iterator

MAX_LINE_BYTES = 1 << 20  # longer lines are split, so that one line cannot fill the memory
MAX_DOCUMENT_BYTES = 8 << 20  # longer documents, which often lack their blank lines, are split too


@dataclasses.dataclass(frozen=True, slots=True)
class Document:
    """One document.

    Attributes:
        key: the name of the document, which is the same in every run: its URL or id, or its file and byte
            offset.
        passages: its sentences, or its paragraphs if they are not split yet; none of them is blank.
        presplit: whether the passages are sentences.
        part: the number of this part of a document of over MAX_DOCUMENT_BYTES; 0 otherwise.
    """

    key: str
    passages: tuple[str, ...]
    presplit: bool
    part: int = 0

    @property
    def whole_key(self) -> str:
        """The key of the document of which this is a part."""
        return self.key.removesuffix(f"#{self.part}") if self.part else self.key

    @property
    def size(self) -> int:
        """The size of its text in UTF-8, in bytes."""
        return sum(map(utf8_size, self.passages))


def utf8_size(text: str) -> int:
    """Returns the size of a text in UTF-8, in bytes; a lone surrogate has three."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class Beginnings:
    """Recognizes where documents begin in a stream of their parts, of which any may have been dropped."""

    def __init__(self) -> None:
        self._key, self._part = "", 0

    def begins(self, document: Document) -> bool:
        """Returns whether this is the first part of its document in the stream."""
        key, part = self._key, self._part
        self._key, self._part = document.whole_key, document.part
        return document.part <= part or document.whole_key != key


@dataclasses.dataclass(frozen=True)
class Fields:
    """The names of the fields to read of `jsonl`, Parquet and Arrow files and TFDS data sets.

    Attributes:
        text: the field of the text.
        id: the field that names the document; "" names it by its position in the file.
    """

    text: str = "text"
    id: str = ""


def not_text(path: str, field: str, found: str, others: Iterable[str]) -> str:
    """Returns the message that a field or column holds something else than text.

    Args:
        path: the file.
        field: the field or column.
        found: what it holds, such as "a list".
        others: the fields or columns of the file, for the advice.
    """
    names = [name for name in others if name != field]
    choice = f"choose another of {', '.join(names)}, or " if names else ""
    return (
        f"--text_field={field}: in {path} it holds {found}, expected text; {choice}write the file again with "
        "the parts of each document joined to one text"
    )


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents that start at bytes [start, end) of a file.

    Attributes:
        path: the file, or a TFDS data set as `bert_jax.io.tfds.find` names it.
        name: a short name of the file that does not depend on where the corpus is; part of document keys.
        start: the first byte; of a TFDS data set, Parquet or Arrow, the first record.
        end: the byte or record after the last one; None for a compressed file that is one range.
        size: the size of the range in the file, in bytes.
    """

    path: str
    name: str
    start: int
    end: int | None
    size: int


# Control characters that are no whitespace, and those that are, for each value of `Controls.keep_c1`; tab,
# newline and carriage return are neither.
_CONTROLS = {
    False: re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+"),
    True: re.compile("[\x00-\x08\x0e-\x1b\x7f]+"),
}
_SPACING_CONTROLS = {
    False: re.compile("[\x0b\x0c\x1c-\x1f\x85]"),
    True: re.compile("[\x0b\x0c\x1c-\x1f]"),
}
_WHITESPACE_BUT_C1 = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and c != "\x85")


@dataclasses.dataclass(frozen=True)
class Controls:
    """What becomes of the control characters of a text; tab, newline and carriage return are none here.

    Attributes:
        spaces: whether those that are whitespace, such as a form feed, become spaces. They are dropped
            otherwise, as in google-research/bert.
        keep_c1: whether U+0080 to U+009F stay. Without them, text that was decoded as Latin-1 in place of
            UTF-8 cannot be repaired.
    """

    spaces: bool = False
    keep_c1: bool = False

    @property
    def whitespace(self) -> str | None:
        """The characters to strip from the ends of text, for `str.strip`."""
        return _WHITESPACE_BUT_C1 if self.keep_c1 else None

    def apply(self, text: str) -> tuple[str, int]:
        """Returns a text without control characters, and how many were dropped or replaced."""
        if text.isprintable():
            return text, 0
        kept = _CONTROLS[self.keep_c1].sub("", text)
        cleaned, spacing = _SPACING_CONTROLS[self.keep_c1].subn(" " * self.spaces, kept)
        return cleaned, len(text) - len(kept) + spacing


_HUGE_REFERENCE = re.compile(r"&#\d{1000,};?")


def unescape(text: str) -> str:
    """Returns `html.unescape(text)`, with U+FFFD for a number of 1,000 digits or more.

    `html.unescape` raises ValueError for a number of over 4,300 digits.
    """
    return html.unescape(_HUGE_REFERENCE.sub("\ufffd", text))


def decode(data: bytes, counts: collections.Counter[str]) -> str:
    """Decodes UTF-8; undecodable bytes become U+FFFD."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        counts["undecodable"] += text.count("\ufffd") - data.count("\ufffd".encode())
        return text


def decode_line(data: bytes, counts: collections.Counter[str], controls: Controls) -> str:
    """Decodes and cleans a line; see `decode` and `clean`."""
    return clean(decode(data, counts), counts, controls)


def clean(text: str, counts: collections.Counter[str], controls: Controls) -> str:
    """Returns the text of one line without control characters and surrounding whitespace."""
    text = text.strip(controls.whitespace)
    if not text.isprintable():
        text, number = controls.apply(text)
        counts["control_characters"] += number
        text = text.strip(controls.whitespace).replace("\t", " ").replace("\r", " ")
    return text


def plain_paragraphs(text: str, counts: collections.Counter[str], controls: Controls) -> Iterator[str]:
    """Yields the lines of a text, cleaned, without blank lines; lines of over MAX_LINE_BYTES are split."""
    for line in text.split("\n"):
        cleaned = clean(line, counts, controls)
        counts["long_lines"] += len(cleaned) > MAX_LINE_BYTES
        yield from short_parts(cleaned, MAX_LINE_BYTES)


def short_parts(line: str, most: int) -> Iterator[str]:
    """Yields a line in parts of at most `most` characters, divided at spaces where there are any."""
    start, end = 0, len(line)
    while end - start > most:
        place = line.rfind(" ", start, start + most) + 1 or start + most
        yield line[start:place].strip()
        start, end = place, len(line.rstrip()) if start == 0 else end
        while start < end and line[start].isspace():
            start += 1
    if start < end:
        yield line[start:end]


def text_document(
    key: str, text: str, counts: collections.Counter[str], controls: Controls
) -> Iterator[Document]:
    """Yields the document of a text whose lines are paragraphs, in parts if it is long."""
    passages = Passages(key, False, counts)
    for paragraph in plain_paragraphs(text, counts, controls):
        yield from passages.add(paragraph, len(paragraph))
    yield from passages.rest()


class Passages:
    """Collects the passages of one document, and splits it into parts if it is too long.

    Args:
        key: the key of the document.
        presplit: whether the passages are sentences.
        counts: updated with "long_documents".
    """

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
