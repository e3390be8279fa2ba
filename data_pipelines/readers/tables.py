"""Reads records with fields: JSON lines, CSV, Parquet, Arrow, and data sets of tensorflow-datasets.

One field is the text of a document, whose lines are paragraphs.
"""

import collections
import csv
import functools
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import columnar, compression, files, tfds
from bert_jax.tokenization import normalization
from data_pipelines.readers.documents import Document, Line, Range, decode, open_lines, text_document

_LONGEST = 32 << 20  # bytes of a JSON line, characters of a line of CSV


def _no_field(text_field: str, path: str, known: Iterable[str]) -> UserError:
    return UserError(
        f"--text_field={text_field}: expected a text field of {path}, which has {', '.join(known)}"
    )


def read_jsonl(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the documents of JSON objects, one on each line."""
    with open_lines(range_, collections.Counter(), _LONGEST) as lines:
        for line in lines:
            if not (line.begins and line.data.strip()):
                continue
            if range_.end is not None and line.offset >= range_.end:
                return
            counts["bytes"] += len(line.data)
            record = _record(line, counts)
            if record is None:
                counts["bad_lines"] += 1
            elif not isinstance(text := record.get(text_field), str):
                counts["without_text"] += 1
            else:
                encodable = normalization.without_surrogates(text)
                counts["undecodable"] += encodable.count("\ufffd") - text.count("\ufffd")
                yield from text_document(f"{range_.name}:{line.offset}", encodable, counts, spaces)


def _record(line: Line, counts: collections.Counter[str]) -> dict[str, Any] | None:
    """Returns the JSON object of a line; None if the line has none."""
    if not line.ends:
        return None
    undecodable: collections.Counter[str] = collections.Counter()
    try:
        record = json.loads(decode(line.data, undecodable))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    counts.update(undecodable)
    return record


def read_csv(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the documents of the rows of a file; the first row names the columns.

    Quotes delimit fields, which may contain newlines (RFC 4180). In .tsv files, tabs separate the fields.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    is_tsv = compression.strip_suffix(range_.path).lower().endswith(".tsv")
    number = 0
    with compression.opened(range_.path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        lines = iter(functools.partial(text.readline, _LONGEST), "")
        reader = csv.reader(lines, delimiter="\t" if is_tsv else ",", strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if text_field not in header:
                raise _no_field(text_field, range_.path, header)
            place = header.index(text_field)
            for number, row in enumerate(reader, 1):
                if len(row) != len(header):
                    counts["bad_lines"] += bool(row)
                    continue
                content = row[place]
                counts["bytes"] += len(content.encode())
                counts["undecodable"] += content.count("\ufffd")
                yield from text_document(f"{range_.name}#{number}", content, counts, spaces)
        except csv.Error as error:
            raise UserError(f"{range_.path}: row {number + 1:,}: {error}; is a quote left open?") from None


def table(path: str) -> columnar.Table:
    """Returns a Parquet or Arrow file; the last remote file is kept, because its ranges are read in turn."""
    return _remote_table(path, files.version(path)) if files.is_remote(path) else columnar.Table(path)


@functools.lru_cache(maxsize=1)
def _remote_table(path: str, version: str) -> columnar.Table:
    return columnar.Table(path)


def read_columns(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the documents of a range of rows of a Parquet or Arrow file."""
    opened = table(range_.path)
    if text_field not in opened.columns or text_field in opened.types:
        raise _no_field(text_field, opened.path, opened.columns)
    for place, row in enumerate(opened.rows([text_field], range_.start, range_.end), range_.start):
        text = row[text_field]
        if isinstance(text, str):
            counts["bytes"] += len(text.encode())
            yield from text_document(f"{range_.name}:{place}", text, counts, spaces)
        else:
            counts["without_text"] += 1


def read_tfds(
    range_: Range, counts: collections.Counter[str], text_field: str, spaces: bool
) -> Iterator[Document]:
    """Yields the documents of a range of records of a TFDS data set."""
    records = tfds.open_split(range_.path, tfds.SPLIT)
    assert range_.end is not None
    for place in range(range_.start, range_.end):
        record = tfds.record(records, place, range_.path)
        text = record.get(text_field)
        if not isinstance(text, bytes | str):
            raise _no_field(text_field, range_.path, sorted(record))
        counts["bytes"] += len(text)
        text = decode(text, counts) if isinstance(text, bytes) else text
        yield from text_document(f"{range_.name}:{place}", text, counts, spaces)
