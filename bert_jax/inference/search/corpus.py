"""Documents of a corpus, and queries: one text per line, or JSON objects as in the data sets of BEIR."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.inference import text_lines
from bert_jax.io import compression
from bert_jax.tasks.table import encodable, encodable_id

_IDS = ("_id", "id")


@dataclasses.dataclass(frozen=True)
class Document:
    """A document or a query.

    Attributes:
        id: the id in the file; without one, the number of the line or of the JSON object from 0.
        text: the text, after the title if there is one.
    """

    id: str
    text: str


def check(path: str, flag: str) -> None:
    """Raises a UserError unless a path is a file of documents, or "-" for standard input; `flag` gave it."""
    text_lines.check(path, flag)
    if compression.strip_suffix(path).lower().endswith((".csv", ".tsv")):
        raise UserError(f"{flag}={path}: expected one text per line, or .jsonl")


def read(path: str, field: str = "text", flag: str = "--corpus") -> Iterator[Document]:
    """Yields the documents of a file, blank ones included, so that numbers are those of lines.

    A file whose name ends in .jsonl, .ndjson or .json has an object on each line that is not blank, with the
    text in `field`, perhaps a `title`, and an id in `_id` or `id`. Any other file has one text per line. Both
    may be compressed.

    Args:
        path: the file; "-" for lines of standard input.
        field: the field of the text.
        flag: the flag that named the file, for messages.

    Raises:
        UserError: the file does not exist, or a line is malformed; the message gives its number.
    """
    check(path, flag)
    objects = text_lines.has_objects(path)
    for number, (place, line) in enumerate(text_lines.read(path)):
        yield _from_object(line, place, field, str(number)) if objects else Document(str(number), line)


def _from_object(line: str, place: str, field: str, number: str) -> Document:
    row = text_lines.parse(line, place)
    text = text_lines.text_of(row, field, "--text_field", place)
    title = encodable(row["title"]).strip() if field != "title" and isinstance(row.get("title"), str) else ""
    found = (row[name] for name in _IDS if isinstance(row.get(name), str | int))
    return Document(encodable_id(str(next(found, number))), f"{title} {text}".strip())
