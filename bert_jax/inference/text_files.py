"""Files of texts, one on each line or in each JSON object, and documents of a corpus."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.inference.engine import Text
from bert_jax.io import compression, files, json_files
from bert_jax.tasks.table import Malformed, encodable, records, text_lines

_MOST_BYTES_TO_COUNT = 2 << 30  # counting the lines of a file of this size takes a second or two


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
    """Raises UserError unless a path is a file of texts, or "-" for standard input; `flag` named it."""
    is_table = compression.strip_suffix(path).lower().endswith((".csv", ".tsv"))
    if is_table or (path != "-" and not files.is_file(path)):
        what = "a table" if is_table else "no such file"
        raise UserError(f"{flag}={path}: {what}; expected a file with one text per line, or .jsonl")


def has_objects(path: str) -> bool:
    """True if each line of a file is a JSON object, by the name of the file."""
    return compression.strip_suffix(path).lower().endswith(json_files.LINES_SUFFIXES)


def _objects(path: str, *fields: str) -> Iterator[dict[str, Any]]:
    """Yields the objects of a file of JSON lines, which have a text in some fields."""
    for number, row in records(path, "jsonl"):
        if isinstance(row, Malformed):
            raise UserError(f"{path}:{number}: {row}")
        for field in fields:
            if not isinstance(value := row.get(field), str):
                raise UserError(
                    f"{path}:{number}: expected text in the field {field!r}, it has "
                    f"{', '.join(row) or 'no fields'}"
                )
            row[field] = encodable(value)
        yield row


def read_documents(path: str, field: str = "text", flag: str = "--corpus") -> Iterator[Document]:
    """Yields the documents of a file, blank ones included, so that their numbers are the numbers of lines.

    A file whose name ends in .jsonl, .ndjson or .json has an object on each line that is not blank, with the
    text in `field`, perhaps a `title`, and an id in `_id` or `id`, as the data sets of BEIR. Any other file
    has one text per line. Both may be compressed; "-" is standard input.

    Raises:
        UserError: the file does not exist, or a line is malformed; the message gives its number.
    """
    check(path, flag)
    if not has_objects(path):
        yield from (Document(str(number), line) for number, line in enumerate(lines(path)))
        return
    for number, row in enumerate(_objects(path, field)):
        title = row.get("title", "") if field != "title" else ""
        title = encodable(title).strip() if isinstance(title, str) else ""
        ids = (row[name] for name in ("_id", "id") if isinstance(row.get(name), str | int))
        yield Document(encodable(str(next(ids, number))), f"{title} {row[field]}".strip())


def read_texts(path: str, text_a: str = "text", text_b: str = "") -> Iterator[Text]:
    """Yields the texts of a file, including blank ones, so that results correspond to lines.

    Args:
        path: the path of a file with one text per line, or with one JSON object per line if the name ends in
            .jsonl; "-" for lines from standard input. Files with the suffix .gz, .bz2, .xz or .zst are
            decompressed.
        text_a: the field of the text in .jsonl files.
        text_b: the field of the second text of a pair in .jsonl files; "" for single texts.

    Raises:
        UserError: a line is malformed; the message gives its number.
    """
    if has_objects(path):
        for row in _objects(path, *filter(None, (text_a, text_b))):
            yield (row[text_a], row[text_b]) if text_b else row[text_a]
        return
    yield from lines(path)


def lines(path: str) -> Iterator[str]:
    """Yields the lines of a file, or of standard input, without their newlines; see `table.text_lines`."""
    return (line.rstrip("\r\n") for line in text_lines(path))


def count_lines(path: str) -> int | None:
    """Returns the number of lines of a file; None if counting them would take long, or use up a pipe."""
    if not os.path.isfile(path) or compression.suffix(path) or os.path.getsize(path) > _MOST_BYTES_TO_COUNT:
        return None
    with files.open_read(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
