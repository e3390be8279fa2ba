"""Reads the format `csv`: one column of the rows is the text of a document.

In .tsv files, tabs separate the fields; the quoting rules are the same.
"""

import collections
import csv
import io
from collections.abc import Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import compression
from data_pipelines.readers.documents import Controls, Document, Fields, Range, text_document
from data_pipelines.readers.lines import HEAD_BYTES, check_head

_LONGEST = 32 << 20  # characters of a line, and of a field


def read(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of the rows of a file; newlines in the text separate paragraphs.

    The first row names the columns. In CSV, quotes delimit fields, which may contain newlines (RFC 4180).

    Raises:
        UserError: the file has no column for the text or the id, a quote is left open, or a line is too long.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    is_tsv = compression.strip_suffix(range_.path).lower().endswith(".tsv")
    number = 0
    with compression.opened(range_.path) as file:
        check_head(file.read(HEAD_BYTES), range_.path)
    with compression.opened(range_.path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        delimiter = "\t" if is_tsv else ","
        reader = csv.reader(_lines(text, range_.path), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            place, id_place = _places(header, fields, range_.path)
            for number, row in enumerate(reader, 1):
                if len(row) != len(header):
                    counts["bad_lines"] += bool(row)
                    continue
                content = row[place]
                counts["bytes"] += len(content.encode())
                counts["undecodable"] += content.count("\ufffd")
                key = "" if id_place is None else row[id_place]
                yield from text_document(key or f"{range_.name}#{number}", content, counts, controls)
        except csv.Error as error:
            raise UserError(f"{range_.path}: row {number + 1:,}: {error}; is a quote left open?") from None


def _lines(text: Any, path: str) -> Iterator[str]:
    while line := text.readline(_LONGEST):
        if len(line) == _LONGEST and not line.endswith("\n"):
            raise UserError(f"{path}: a line of over {_LONGEST:,} characters; is it a table?")
        yield line


def _places(header: list[str], fields: Fields, path: str) -> tuple[int, int | None]:
    for flag, field in (("text_field", fields.text), ("id_field", fields.id)):
        if field and field not in header:
            shown = ", ".join(name[:40] for name in header[:20])
            raise UserError(f"--{flag}={field}: {path} has no such column; its first row is {shown}")
    return header.index(fields.text), header.index(fields.id) if fields.id else None
