"""Writers of tables and JSON-lines files, which replace a file atomically."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.io import atomic


def write_json_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON-lines file with one object for each row."""
    atomic.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_table(
    path: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, csv: bool = False
) -> None:
    """Writes a table as CSV (RFC 4180), or as TSV without quotes.

    In TSV, each run of whitespace in a field is replaced by one space.

    Args:
        path: the path of the file.
        header: the names of the columns.
        rows: the values of each row.
        csv: whether to write CSV instead of TSV.
    """
    separator, field = (",", _quoted) if csv else ("\t", _one_line)
    lines = (separator.join(map(field, row)) + "\n" for row in (header, *rows))
    atomic.write_text(path, "".join(lines))


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _quoted(value: Any) -> str:
    text = str(value)
    if any(character in text for character in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
