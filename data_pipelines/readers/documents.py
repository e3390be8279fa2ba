"""A document and its passages, cleaned and cut where they are too long, and a range of documents."""

import collections
import dataclasses
import html
import re
from collections.abc import Iterator

MAX_LINE_BYTES = 1 << 20  # longer lines are cut, so that one line can't fill the memory
MAX_DOCUMENT_BYTES = 8 << 20  # longer documents, often ones that lack their blank lines, are cut too


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


@dataclasses.dataclass(frozen=True)
class Fields:
    """Where the records of `jsonl` files and data sets have what is read of them.

    Attributes:
        text: The field of the text.
        id: The field that names the document; "": its place in the file does.
    """

    text: str = "text"
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Range:
    """The documents of a file that start at bytes [start, end) of it.

    Attributes:
        path: The file, or a data set as `bert_jax.io.tfds.find` names it.
        name: A short name of the file, the same wherever the corpus lies; part of the keys of documents.
        start: First byte; of a data set, first record.
        end: The byte or record after the last; None in a compressed file that is one range.
        size: How many bytes of the file this is.
    """

    path: str
    name: str
    start: int
    end: int | None
    size: int


CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]+")


_HUGE_REFERENCE = re.compile(r"&#\d{1000,};?")


def unescape(text: str) -> str:
    """`html.unescape`, which raises ValueError for a number of over 4,300 digits; here it gives U+FFFD."""
    return html.unescape(_HUGE_REFERENCE.sub("\ufffd", text))


def decode_line(data: bytes, counts: collections.Counter[str]) -> str:
    """Text of a line without the control characters and the whitespace around it."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        counts["undecodable"] += text.count("\ufffd") - data.count("\ufffd".encode())
    return clean(text, counts)


def clean(text: str, counts: collections.Counter[str]) -> str:
    """Text of one line without the control characters and the whitespace around it."""
    text = text.strip()
    if not text.isprintable():
        cleaned = CONTROLS.sub("", text)
        counts["control_characters"] += len(text) - len(cleaned)
        text = cleaned.strip().replace("\t", " ").replace("\r", " ")
    return text


def plain_paragraphs(text: str, counts: collections.Counter[str]) -> Iterator[str]:
    """The lines of a text, cleaned and without the blank ones; lines of over MAX_LINE_BYTES are cut."""
    for line in text.split("\n"):
        cleaned = clean(line, counts)
        counts["long_lines"] += len(cleaned) > MAX_LINE_BYTES
        while len(cleaned) > MAX_LINE_BYTES:
            place = cleaned.rfind(" ", 0, MAX_LINE_BYTES) + 1 or MAX_LINE_BYTES
            yield cleaned[:place].strip()
            cleaned = cleaned[place:].strip()
        if cleaned:
            yield cleaned


class Passages:
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
