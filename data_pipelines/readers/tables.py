"""Reads records with fields: JSON lines, CSV, Parquet, Arrow, and data sets of tensorflow-datasets.

One field is the text of a document, whose lines are paragraphs.
"""

import collections
import csv
import functools
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import columnar, compression, files, tfds
from bert_jax.tokenization import normalization
from data_pipelines.readers.documents import (
    HEAD_BYTES,
    Controls,
    Document,
    Fields,
    Line,
    Range,
    check_head,
    decode,
    open_lines,
    text_document,
)

_LONGEST = 32 << 20  # bytes of a JSON line, characters of a line of CSV
_CHECKED = 100  # lines


def _check_fields(fields: Fields, known: Sequence[str], path: str) -> None:
    for flag, field in (("text_field", fields.text), ("id_field", fields.id)):
        if field and field not in known:
            raise UserError(f"--{flag}={field}: {path} has no such field; it has {', '.join(known[:20])}")


def _not_text(fields: Fields, path: str, kind: str) -> UserError:
    return UserError(f"--text_field={fields.text}: in {path} it holds {kind}; expected text")


def read_jsonl(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of JSON objects, one on each line.

    Raises:
        UserError: none of the first 100 lines of the file has the text field.
    """
    if range_.start == 0:
        _check_jsonl(range_, fields)
    with open_lines(range_, collections.Counter(), _LONGEST) as lines:
        for line in _nonblank(lines):
            if range_.end is not None and line.offset >= range_.end:
                return
            counts["bytes"] += len(line.data)
            record = _record(line, counts)
            if record is None:
                counts["bad_lines"] += 1
                continue
            text = record.get(fields.text)
            if not isinstance(text, str):
                counts["without_text"] += 1
                continue
            key = record.get(fields.id) if fields.id else None
            if isinstance(key, str | int) and key != "":
                key = _encodable(str(key), collections.Counter())
            else:
                key = f"{range_.name}:{line.offset}"
            yield from text_document(key, _encodable(text, counts), counts, controls)


def _record(line: Line, counts: collections.Counter[str]) -> dict[str, Any] | None:
    """Returns the JSON object of a line; None if there is none."""
    if not line.ends:
        return None
    undecodable: collections.Counter[str] = collections.Counter()
    try:
        try:
            record = json.loads(line.data)
        except UnicodeDecodeError:
            record = json.loads(decode(line.data, undecodable))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    counts.update(undecodable)
    return record


def _encodable(text: str, counts: collections.Counter[str]) -> str:
    """Replaces unpaired surrogates, which JSON can represent and UTF-8 cannot, by U+FFFD."""
    encodable = normalization.without_surrogates(text)
    counts["undecodable"] += encodable.count("\ufffd") - text.count("\ufffd")
    return encodable


def _check_jsonl(range_: Range, fields: Fields) -> None:
    whole = Range(range_.path, range_.name, 0, None, range_.size)
    with open_lines(whole, collections.Counter(), _LONGEST) as lines:
        first = list(itertools.islice(_nonblank(lines), _CHECKED))
    records = [record for line in first if (record := _record(line, collections.Counter())) is not None]
    if first and not records:
        raise UserError(
            f"{range_.path}: no JSON object in the first {len(first)} lines; expected one on each line"
        )
    values = [record[fields.text] for record in records if record.get(fields.text) is not None]
    if values and not any(isinstance(value, str) for value in values):
        raise _not_text(fields, range_.path, f"values of type {type(values[0]).__name__}")
    if records and not values:
        _check_fields(Fields(fields.text), list(dict.fromkeys(itertools.chain(*records))), range_.path)
        raise _not_text(fields, range_.path, "nothing")


def _nonblank(lines: Iterable[Line]) -> Iterator[Line]:
    return (line for line in lines if line.begins and line.data.strip())


def read_csv(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of the rows of a file; the first row names the columns.

    Quotes delimit fields, which may contain newlines (RFC 4180). In .tsv files, tabs separate the fields.

    Raises:
        UserError: the file has no column for the text or the id, a quote is left open, or a line is too long.
    """
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST))
    is_tsv = compression.strip_suffix(range_.path).lower().endswith(".tsv")
    number = 0
    with compression.opened(range_.path) as file:
        check_head(file.read(HEAD_BYTES), range_.path)
        file.seek(0)
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
        lines = iter(functools.partial(text.readline, _LONGEST), "")
        reader = csv.reader(lines, delimiter="\t" if is_tsv else ",", strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            _check_fields(fields, header, range_.path)
            place, id_place = header.index(fields.text), header.index(fields.id) if fields.id else None
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


def check_columns(path: str, fields: Fields) -> None:
    """Raises UserError if a local Parquet or Arrow file lacks a column, or the text column has no text."""
    if not files.is_remote(path):  # opening a remote Arrow file copies it
        _check_table(columnar.Table(path), fields)


def _check_table(table: columnar.Table, fields: Fields) -> None:
    _check_fields(fields, table.columns, table.path)
    if kind := table.types.get(fields.text):
        raise _not_text(fields, table.path, f"values of type {kind}")


def table(path: str) -> columnar.Table:
    """Returns a Parquet or Arrow file; the last remote one is kept, since its ranges are read one by one."""
    return _remote_table(path, files.version(path)) if files.is_remote(path) else columnar.Table(path)


@functools.lru_cache(maxsize=1)
def _remote_table(path: str, version: str) -> columnar.Table:
    return columnar.Table(path)


def read_columns(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of a range of rows of a Parquet or Arrow file."""
    opened = table(range_.path)
    _check_table(opened, fields)
    columns = [fields.text, *([fields.id] if fields.id else [])]
    for place, row in enumerate(opened.rows(columns, range_.start, range_.end), range_.start):
        text = row[fields.text]
        if not isinstance(text, str):
            counts["without_text"] += 1
            continue
        counts["bytes"] += len(text.encode())
        key = row[fields.id] if fields.id else None
        key = f"{range_.name}:{place}" if key in (None, "") else str(key)
        yield from text_document(key, text, counts, controls)


def check_tfds(path: str, fields: Fields) -> None:
    """Raises UserError if the records of a TFDS data set lack a field."""
    info = tfds.builder(path).info
    _check_fields(fields, sorted(info.features), info.full_name)


def read_tfds(
    range_: Range, counts: collections.Counter[str], fields: Fields, controls: Controls
) -> Iterator[Document]:
    """Yields the documents of a range of records of a TFDS data set."""
    check_tfds(range_.path, fields)
    records = tfds.open_split(range_.path, tfds.SPLIT)
    assert range_.end is not None
    for place in range(range_.start, range_.end):
        record = tfds.record(records, place, range_.path)
        text = record[fields.text]
        if not isinstance(text, bytes | str):
            raise _not_text(fields, range_.name, f"values of type {type(text).__name__}")
        key = tfds.as_text(record[fields.id]) if fields.id else ""
        counts["bytes"] += len(text)
        text = decode(text, counts) if isinstance(text, bytes) else text
        yield from text_document(key or f"{range_.name}:{place}", text, counts, controls)
