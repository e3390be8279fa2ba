"""Files of texts, one on each line or in each JSON object, and documents of a corpus."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError, reading
from bert_jax.inference.engine import Text
from bert_jax.io import compression, files, json_files
from bert_jax.tasks.table import Malformed, encodable, parse_object

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


def check(path: str, flag: str, pairs: bool = False) -> None:
    """Raises UserError unless a path is a file of texts, or "-" for standard input; `flag` named it."""
    is_table = compression.strip_suffix(path).lower().endswith(".csv" if pairs else (".csv", ".tsv"))
    if is_table or (path != "-" and not files.is_file(path)):
        what = "a table" if is_table else "no such file"
        raise UserError(f"{flag}={path}: {what}; expected a file with one text per line, or .jsonl")


def has_objects(path: str) -> bool:
    """True if each line of a file is a JSON object, by the name of the file."""
    return compression.strip_suffix(path).lower().endswith(json_files.LINES_SUFFIXES)


def read_lines_of(path: str) -> Iterator[tuple[str, str]]:
    """Yields (place, line) of a file, which may be compressed, or of standard input.

    The place names the line, for messages. Lines are without their newlines. Blank lines are skipped if each
    line is a JSON object; otherwise they are texts.

    Raises:
        UserError: a line is not UTF-8.
    """
    name = "standard input" if path == "-" else path
    with (
        reading(name),
        contextlib.nullcontext(sys.stdin.buffer) if path == "-" else compression.opened(path) as file,
    ):
        for number, line in enumerate(file, 1):
            if has_objects(path) and not line.strip():
                continue
            place = f"line {number} of {name}"
            try:
                yield place, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{place} is not UTF-8 ({error.reason}); convert it, as with iconv") from None


def _object(line: str, place: str, *fields: str) -> dict[str, Any]:
    try:
        row = parse_object(line)
    except Malformed as error:
        raise UserError(f"{place}: {error}") from None
    if missing := [field for field in fields if not isinstance(row.get(field), str)]:
        raise UserError(
            f"{place}: expected text in the field {missing[0]!r}, it has {', '.join(row) or 'no fields'}"
        )
    return row


def read_documents(path: str, field: str = "text", flag: str = "--corpus") -> Iterator[Document]:
    """Yields the documents of a file, blank ones included, so that their numbers are the numbers of lines.

    A file whose name ends in .jsonl, .ndjson or .json has an object on each line that is not blank, with the
    text in `field`, perhaps a `title`, and an id in `_id` or `id`, as the data sets of BEIR. Any other file
    has one text per line. Both may be compressed; "-" is standard input.

    Raises:
        UserError: the file does not exist, or a line is malformed; the message gives its number.
    """
    check(path, flag)
    for number, (place, line) in enumerate(read_lines_of(path)):
        if not has_objects(path):
            yield Document(str(number), line)
            continue
        row = _object(line, place, field)
        title = row.get("title", "") if field != "title" else ""
        title = encodable(title).strip() if isinstance(title, str) else ""
        ids = (row[name] for name in ("_id", "id") if isinstance(row.get(name), str | int))
        text = f"{title} {encodable(row[field])}".strip()
        yield Document(encodable(str(next(ids, number))), text)


def read_texts(path: str, pairs: bool = False, text_a: str = "text", text_b: str = "") -> Iterator[Text]:
    """Yields the texts of a file, including blank ones, so that results correspond to lines.

    Args:
        path: the path of a file with one text per line, or with one JSON object per line if the name ends in
            .jsonl; "-" for lines from standard input. Files with the suffix .gz, .bz2, .xz or .zst are
            decompressed.
        pairs: whether each line has two texts, separated by a tab.
        text_a: the field of the text in .jsonl files.
        text_b: the field of the second text of a pair in .jsonl files; "" for single texts.

    Raises:
        UserError: a line is malformed; the message gives its number.
    """
    fields = (text_a, text_b) if text_b else (text_a,)
    for place, line in read_lines_of(path):
        texts = line.split("\t") if pairs else [line]
        if has_objects(path):
            row = _object(line, place, *fields)
            texts = [encodable(row[field]) for field in fields]
        elif pairs and len(texts) != 2:
            raise UserError(f"{place}: expected two texts with one tab between them, found {len(texts) - 1}")
        yield texts[0] if len(texts) == 1 else (texts[0], texts[1])


def count_lines(path: str) -> int | None:
    """Returns the number of lines of a file; None if counting them would take long, or use up a pipe."""
    if not os.path.isfile(path) or compression.suffix(path) or os.path.getsize(path) > _MOST_BYTES_TO_COUNT:
        return None
    with files.open_read(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
