"""Reads text files, with one text per line or per row of a table, and the documents of a corpus."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax import hub
from bert_jax.errors import UserError
from bert_jax.inference.engine import Text
from bert_jax.io import compression, files, json_files
from bert_jax.tasks import inferred, table

_MOST_BYTES_TO_COUNT = 2 << 30  # counting the lines of a file of this size takes a second or two


@dataclasses.dataclass(frozen=True)
class Document:
    """A document or a query; `text` begins with the title if there is one."""

    id: str  # in the file, or the number of the line or JSON object, counted from 0
    text: str


def check(path: str, flag: str) -> None:
    """Raises UserError unless `path`, the value of `flag`, has texts or is "-" for standard input."""
    if path != "-" and not path.startswith(hub.DATA) and not files.is_file(path):
        raise UserError(f"{flag}={path}: no such file")


def is_table(path: str) -> bool:
    """Returns whether a path names a table that fine-tuning can read."""
    name = compression.strip_suffix(path).lower()
    return path.startswith(hub.DATA) or name.endswith(tuple(table.FORMATS))


def _rows(path: str, *columns: str) -> Iterator[tuple[Mapping[str, Any], list[str]]]:
    """Yields the rows of a table and their texts in some columns; "" finds a column by its usual names."""
    for part in table.parts(path) if path.startswith(hub.DATA) else [path]:
        for number, row in table.records(part, table.detect_format(table.FORMATS, part)):
            try:
                if isinstance(row, table.Malformed):
                    raise row
                found = [name for name in inferred.TEXTS if name in row]
                usual = found[0] if len(found) == 1 else inferred.TEXTS[0]
                columns = tuple(column or usual for column in columns)
                keys = (table.find_key(row, [column]) for column in columns)
                yield row, [table.json_text(row[key], "text", key) for key in keys]
            except table.Malformed as error:
                raise UserError(f"{part}:{number}: {error}") from None


def read_documents(path: str, flag: str = "--corpus") -> Iterator[Document]:
    """Yields the documents of a file, including blank ones, so that their numbers are line numbers.

    A table (JSON lines, CSV, TSV, Parquet, Arrow) has the text in `text` or another column of
    `inferred.TEXTS`, an optional `title`, and an id in `_id` or `id`, as in BEIR. Any other file has one text
    per line. Both may be compressed; "-" is standard input.
    """
    check(path, flag)
    if not is_table(path):
        yield from (Document(str(number), line) for number, line in enumerate(lines(path)))
        return
    for number, (row, [text]) in enumerate(_rows(path, "")):
        title = row.get("title", "")
        title = table.encodable(title).strip() if isinstance(title, str) else ""
        ids = (row[name] for name in ("_id", "id") if isinstance(row.get(name), str | int))
        yield Document(table.encodable(str(next(ids, number))), f"{title} {text}".strip())


def read_texts(path: str, text_a: str = "", text_b: str = "") -> Iterator[Text]:
    """Yields the texts of a file, including blank ones, so that results correspond to lines.

    `path` is a file with one text per line, a table, as its suffix says, hf:ORG/NAME for the training set on
    the hub, or "-" for lines from standard input. The columns `text_a` and `text_b` of a table are as in
    `_rows`; with `text_b`, texts are pairs.
    """
    if is_table(path):
        for _, texts in _rows(path, text_a, *filter(None, [text_b])):
            yield (texts[0], texts[1]) if text_b else texts[0]
        return
    yield from lines(path)


def lines(path: str) -> Iterator[str]:
    """Yields the lines of a file, or of standard input, without their newlines; see `table.text_lines`."""
    return (line.rstrip("\r\n") for line in table.text_lines(path))


def count_lines(path: str) -> int | None:
    """Returns the number of texts in a file of lines; None if counting is slow or would consume a pipe."""
    if is_table(path) and not path.lower().endswith(json_files.LINES_SUFFIXES):
        return None
    if not os.path.isfile(path) or compression.suffix(path) or os.path.getsize(path) > _MOST_BYTES_TO_COUNT:
        return None
    with files.open_read(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
