"""Documents of a corpus, and queries: one text per line, or JSON objects as in the data sets of BEIR."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import compression, files
from bert_jax.tasks.readers.file_rows import open_file, parse_object, read_lines
from bert_jax.tasks.readers.report import Malformed

_JSON = (".jsonl", ".ndjson")
_IDS = ("_id", "id")


@dataclasses.dataclass(frozen=True)
class Document:
    """A document or a query.

    Attributes:
        id: the id in the file; without one, the number of the line from 0.
        text: the text, after the title if there is one.
    """

    id: str
    text: str


def read(path: str, field: str = "text", flag: str = "--corpus") -> Iterator[Document]:
    """Yields the documents of a file, blank ones included, so that numbers are those of lines.

    A file whose name ends in .jsonl has an object on each line, with the text in `field`, perhaps a `title`,
    and an id in `_id` or `id`. Any other file has one text per line. Both may be compressed.

    Args:
        path: the file; "-" for lines of standard input.
        field: the field of the text.
        flag: the flag that named the file, for messages.

    Raises:
        UserError: the file does not exist, or a line is malformed; the message gives its number.
    """
    name = compression.strip_suffix(path).lower()
    if path != "-" and not files.is_file(path):
        what = "a directory" if files.is_directory(path) else "no such file"
        raise UserError(f"{flag}={path}: {what}; expected a file of one text per line, or .jsonl")
    if name.endswith((".csv", ".tsv")):
        raise UserError(f"{flag}={path}: expected one text per line, or .jsonl")
    if path == "-":
        yield from _parse(sys.stdin.buffer, "standard input", "")
        return
    with open_file(path) as file:
        yield from _parse(file, path, field if name.endswith(_JSON) else "")


def _parse(file: Any, path: str, field: str) -> Iterator[Document]:
    for number, line in enumerate(read_lines(path, file)):
        where = f"{path}:{number + 1}"
        try:
            text = line.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{where}: not UTF-8 ({error.reason}); convert it, as with iconv") from None
        yield _from_object(text, where, field, str(number)) if field else Document(str(number), text)


def _from_object(line: str, where: str, field: str, number: str) -> Document:
    try:
        row = parse_object(line)
    except Malformed as error:
        raise UserError(f"{where}: {error}") from None
    if not isinstance(row.get(field), str):
        fields = ", ".join(row) or "no fields"
        raise UserError(f"{where}: expected text in the field {field!r} (--text), it has {fields}")
    title = row["title"].strip() if field != "title" and isinstance(row.get("title"), str) else ""
    found = (row[name] for name in _IDS if isinstance(row.get(name), str | int))
    return Document(str(next(found, number)), f"{title} {row[field]}".strip())
