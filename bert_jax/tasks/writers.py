"""Writers of tables and JSON-lines files, which replace a file atomically."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.io import atomic


def write_json_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON-lines file with one object for each row."""
    atomic.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_table(
    path: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, as_csv: bool = False
) -> None:
    """Writes a table as CSV (RFC 4180), or as TSV without quotes.

    In TSV, each run of whitespace in a field is replaced by one space.

    Args:
        path: the path of the file.
        header: the names of the columns.
        rows: the values of each row.
        as_csv: whether to write CSV instead of TSV.
    """
    content = io.StringIO()
    if as_csv:
        csv.writer(content, lineterminator="\n").writerows((header, *rows))
    else:
        for row in (header, *rows):
            content.write("\t".join(" ".join(str(value).split()) for value in row) + "\n")
    atomic.write_text(path, content.getvalue())
