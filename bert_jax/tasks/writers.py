"""Writers of tables and JSON lines files, which replace a file atomically."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.io import atomic


def write_json_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON lines file with one object for each row."""
    with atomic.replace_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def write_table(
    path: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, as_csv: bool = False
) -> None:
    """Writes a table as CSV (RFC 4180), or as TSV, in which a run of whitespace is a space."""
    lines = itertools.chain([header], rows)
    if not as_csv:
        lines = ([" ".join(str(value).split()) for value in row] for row in lines)
    with atomic.replace_file(path) as file:
        writer = codecs.getwriter("utf-8")(file)
        csv.writer(writer, delimiter="," if as_csv else "\t", lineterminator="\n").writerows(lines)
