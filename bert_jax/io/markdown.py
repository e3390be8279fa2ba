"""Writes tables in Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~-])")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table, whose cells are Markdown without line breaks and bare `|`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table_of_texts(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table whose cells show texts as they are, with spaces in place of line breaks."""
    return table([*map(_escape, header)], [[*map(_escape, row)] for row in rows])


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", html.escape(" ".join(text.split()), quote=False))
