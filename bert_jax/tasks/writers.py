"""Files of predictions and of mistakes, written as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_jax.io import atomic


def write_json_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object on each line."""
    atomic.write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_table(
    path: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, csv: bool = False
) -> None:
    """Writes a TSV without quotes, whose fields have one space for any white space; or a CSV (RFC 4180)."""
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
