"""Files of texts, one on each line: plain ones, and those of JSON objects."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import compression, files, json_files
from bert_jax.tasks.table import Malformed, encodable, open_file, parse_object, read_lines


def check(path: str, flag: str) -> None:
    """Raises a UserError unless a path is a file, or "-" for standard input; `flag` gave it."""
    if path != "-" and not files.is_file(path):
        what = "a directory" if files.is_directory(path) else "no such file"
        raise UserError(f"{flag}={path}: {what}; expected a file of one text per line, or .jsonl")


def name_of(path: str) -> str:
    """Returns the name of a file for messages, which is "standard input" for "-"."""
    return "standard input" if path == "-" else path


def has_objects(path: str) -> bool:
    """Returns whether each line of a file is a JSON object, by the name of the file."""
    return compression.strip_suffix(path).lower().endswith(json_files.LINES_SUFFIXES)


def read(path: str) -> Iterator[tuple[str, str]]:
    """Yields (place, line) of a file, which may be compressed, or of standard input.

    The place is that of the line in words, for messages. Lines are without their newlines. Blank lines are
    left out if each line is a JSON object, as other readers of such files do; elsewhere they are texts.

    Raises:
        UserError: a line is not UTF-8, or too long.
    """
    stdin = path == "-"
    name = name_of(path)
    objects = has_objects(path)
    with contextlib.nullcontext(sys.stdin.buffer) if stdin else open_file(path) as file:
        for number, line in enumerate(read_lines(name, file), 1):
            if objects and not line.strip():
                continue
            place = f"line {number} of {name}"
            try:
                yield place, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{place} is not UTF-8 ({error.reason}); convert it, as with iconv") from None


def parse(line: str, place: str) -> dict[str, Any]:
    """Returns the JSON object of a line. Raises a UserError if there is none."""
    try:
        return parse_object(line)
    except Malformed as error:
        raise UserError(f"{place}: {error}") from None


def text_of(row: dict[str, Any], field: str, flag: str, place: str) -> str:
    """Returns the text in a field, which `flag` named. Raises a UserError if there is none."""
    if not isinstance(row.get(field), str):
        fields = ", ".join(row) or "no fields"
        raise UserError(f"{place}: expected text in the field {field!r} ({flag}), it has {fields}")
    return encodable(row[field])
