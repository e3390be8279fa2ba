"""Sources of a corpus: files of text, of rows (Parquet, Arrow), and data sets of tensorflow-datasets.

This is the only module of the readers that distinguishes them; `source_of` does so by the scheme of the path.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, ClassVar

from bert_jax.errors import UserError
from bert_jax.io import columnar, compression, files, tfds
from data_pipelines.readers import listing
from data_pipelines.readers.documents import (
    Controls,
    Document,
    Fields,
    Range,
    decode,
    not_text,
    text_document,
)
from data_pipelines.readers.formats import Format
from data_pipelines.readers.lines import HEAD_BYTES, check_head

_STREAM = re.compile(rb"BZh[1-9]1AY&SY")  # the beginning of a bzip2 stream and of its first block
_COUNTED_BYTES = 64 << 20  # the maximum number of bytes read to determine a line number
_LONGEST_STREAM = 32 << 20  # compressed bytes; longer streams are not searched for


@dataclasses.dataclass(frozen=True)
class Source:
    """A path of a corpus, or a pattern of paths: a file on the local disk, or on any file system of fsspec.

    Attributes:
        path: the path or the pattern.
        has_signs: whether the text can show signs of another format.
    """

    path: str
    has_signs: ClassVar[bool] = True

    def find(self, tfds_data_dir: str) -> list[str]:
        """Returns the paths that match this pattern.

        Raises:
            UserError: no path matches.
        """
        remote = files.is_remote(self.path)
        found = listing.remote_files(self.path) if remote else listing.local_files(self.path)
        if not found:
            if not remote and os.path.isdir(self.path):
                raise UserError(f"--input={self.path}: the directory has no files; expected text files")
            where = "" if remote else f" (from {os.getcwd()})"
            raise UserError(f"no input file matches {self.path!r}{where}; expected text files")
        return found

    def size(self) -> int:
        """Returns the size in bytes. Raises OSError if the source cannot be read."""
        return files.size(self.path)

    def parts(self) -> Sequence[str]:
        """Returns the files of which the source consists."""
        return [self.path]

    def check(self, fields: Fields) -> None:
        """Raises UserError if the beginning of the source shows that it is no text, or it lacks a field."""
        if not self.size():
            return
        with compression.opened(self.path) as file:
            check_head(file.read(HEAD_BYTES), self.path)

    def folders(self) -> list[str] | None:
        """Returns the names of the enclosing folders, outermost first; None if the name has none."""
        return self._parts()[:-1]

    def name(self, shared: int) -> str:
        """Returns the short name, without the first `shared` folders."""
        return "/".join(self._parts()[shared:])

    def _parts(self) -> list[str]:
        return files.absolute(self.path).replace(os.sep, "/").split("/")

    def has_fields(self, format: Format) -> bool:
        """Returns whether `Fields` determine what is read."""
        return format.has_fields

    def split(self, target_bytes: int, format: Format, name: str) -> list[Range]:
        """Returns ranges of about `target_bytes` with this short name."""
        size = self.size()
        number = -(-size // target_bytes)
        edges = [size * i // number for i in range(number + 1)] if number else []
        kind = compression.suffix(self.path)
        if kind == ".bz2" and format.streams and number > 1:
            edges = _stream_edges(self.path, edges)
        elif format.whole or kind:
            edges = [0, size] if size else []
        one = len(edges) == 2 and bool(kind)
        return [Range(self.path, name, a, None if one else b, b - a) for a, b in itertools.pairwise(edges)]

    def read(
        self,
        range_: Range,
        format: Format,
        counts: collections.Counter[str],
        fields: Fields,
        controls: Controls,
    ) -> Iterator[Document]:
        """Yields the documents of a range, and updates `counts`."""
        return format.read(range_, counts, fields, controls)

    def place(self, offset: int) -> str:
        """Describes an offset of a document: by its line, or its byte if it is far into a large file."""
        if offset > _COUNTED_BYTES:
            return f"byte {offset:,}"
        with compression.opened(self.path) as file:
            lines = file.read(offset).count(b"\n")
        return f"line {lines + 1:,}"


@dataclasses.dataclass(frozen=True)
class TfdsSource(Source):
    """A data set that tensorflow-datasets has prepared.

    Its records are the documents; newlines in their text separate paragraphs.

    Attributes:
        path: `tfds:NAME`, or the result of `tfds.find` for it.
    """

    has_signs: ClassVar[bool] = False

    def find(self, tfds_data_dir: str) -> list[str]:
        """Returns the data set, with its version and directory."""
        return [tfds.find(self.path, tfds_data_dir)]

    def size(self) -> int:
        """Returns the size of its files, in bytes."""
        return tfds.size(self.path)

    def parts(self) -> Sequence[str]:
        """Returns its files."""
        return tfds.files(self.path)

    def check(self, fields: Fields) -> None:
        """Raises UserError if its records lack a field."""
        _wanted(fields, sorted(tfds.builder(self.path).info.features), self.name(0), "field")

    def folders(self) -> list[str] | None:
        """Returns None: its name has no folders."""
        return None

    def name(self, shared: int) -> str:
        """Returns its name."""
        return tfds.builder(self.path).info.full_name

    def has_fields(self, format: Format) -> bool:
        """Returns True: its records have fields."""
        return True

    def split(self, target_bytes: int, format: Format, name: str) -> list[Range]:
        """Returns ranges of records of about `target_bytes`."""
        records = tfds.builder(self.path).info.splits[tfds.SPLIT].num_examples
        return _split_records(self, name, records, target_bytes)

    def read(
        self,
        range_: Range,
        format: Format,
        counts: collections.Counter[str],
        fields: Fields,
        controls: Controls,
    ) -> Iterator[Document]:
        """Yields the documents of a range of records."""
        self.check(fields)
        features = tfds.builder(self.path).info.features
        records = tfds.open_split(self.path, tfds.SPLIT)
        assert range_.end is not None
        for place in range(range_.start, range_.end):
            found = tfds.record(records, place, self.path)
            text = found[fields.text]
            if not isinstance(text, bytes | str):
                what = f"values of type {type(text).__name__}"
                raise UserError(not_text(range_.name, fields.text, what, sorted(features)))
            key = tfds.as_text(found[fields.id]) if fields.id else ""
            counts["bytes"] += len(text)
            text = decode(text, counts) if isinstance(text, bytes) else text
            yield from text_document(key or f"{range_.name}:{place}", text, counts, controls)

    def place(self, offset: int) -> str:
        """Describes a record by its number."""
        return f"record {offset + 1:,}"


@dataclasses.dataclass(frozen=True)
class ColumnSource(Source):
    """A Parquet or Arrow file; its rows are the documents, and newlines in their text separate paragraphs."""

    has_signs: ClassVar[bool] = False

    def check(self, fields: Fields) -> None:
        """Raises UserError if a local file is damaged, lacks a column, or that of the text has no text."""
        if not files.is_remote(self.path):  # opening a remote Arrow file copies it
            _columns(_table(self.path), fields)

    def has_fields(self, format: Format) -> bool:
        """Returns True: its rows have columns."""
        return True

    def split(self, target_bytes: int, format: Format, name: str) -> list[Range]:
        """Returns ranges of rows of about `target_bytes`; those of a Parquet file begin with a row group."""
        table = _table(self.path)
        return _split_records(self, name, len(table), target_bytes, table.group_starts())

    def read(
        self,
        range_: Range,
        format: Format,
        counts: collections.Counter[str],
        fields: Fields,
        controls: Controls,
    ) -> Iterator[Document]:
        """Yields the documents of a range of rows."""
        table = _table(range_.path)
        wanted = _columns(table, fields)
        rows = table.rows(wanted, range_.start, range_.end)
        for place, row in enumerate(rows, range_.start):
            text = row[fields.text]
            if not isinstance(text, str):
                counts["without_text"] += 1
                continue
            counts["bytes"] += len(text.encode())
            found = row[fields.id] if fields.id else None
            key = f"{range_.name}:{place}" if found in (None, "") else str(found)
            yield from text_document(key, text, counts, controls)

    def place(self, offset: int) -> str:
        """Describes a row by its number."""
        return f"row {offset + 1:,}"


def _table(path: str) -> columnar.Table:
    """Returns a table. The last remote one is kept, of which a process reads several ranges."""
    if files.is_remote(path):
        with contextlib.suppress(OSError):  # which the table itself reports
            return _remote_table(path, files.version(path))
    return columnar.Table(path)


def _columns(table: columnar.Table, fields: Fields) -> list[str]:
    """Returns the columns to read: that of the text and, if there is one, that of the id.

    Raises:
        UserError: the table lacks one of them, or the values of the first one are never text.
    """
    wanted = _wanted(fields, table.columns, table.path, "column")
    if kind := table.types.get(fields.text):
        raise UserError(not_text(table.path, fields.text, f"values of type {kind}", table.columns))
    return wanted


def _wanted(fields: Fields, known: Sequence[str], name: str, what: str) -> list[str]:
    """Returns the fields to read: that of the text and, if there is one, that of the id.

    Args:
        fields: their names.
        known: the fields that there are.
        name: the name of the source, for the message.
        what: what the source calls a field.

    Raises:
        UserError: the source lacks one of them.
    """
    wanted = {"text_field": fields.text} | ({"id_field": fields.id} if fields.id else {})
    for flag, field in wanted.items():
        if field not in known:
            shown = ", ".join(known)
            raise UserError(f"--{flag}={field}: {name} has no such {what}; it has {shown}")
    return list(wanted.values())


@functools.lru_cache(maxsize=1)
def _remote_table(path: str, version: str) -> columnar.Table:
    return columnar.Table(path)


def _split_records(
    source: Source, name: str, records: int, target_bytes: int, starts: Sequence[int] = ()
) -> list[Range]:
    """Returns ranges of records of about `target_bytes`, if all records have the same size.

    If there are `starts`, which are in ascending order from 0 on, each range begins with one of them.
    """
    size = source.size()
    number = -(-size // target_bytes)
    edges = sorted({records * i // number for i in range(number + 1)}) if number and records else []
    if starts and edges:
        inside = {starts[bisect.bisect_right(starts, edge) - 1] for edge in edges[:-1]}
        edges = sorted({*inside, records})
    return [
        Range(source.path, name, a, b, size * b // records - size * a // records)
        for a, b in itertools.pairwise(edges)
    ]


def source_of(path: str) -> Source:
    """Returns the source for a path or a pattern."""
    if path.startswith(tfds.PREFIX):
        return TfdsSource(path)
    return ColumnSource(path) if columnar.is_columnar(path) else Source(path)


def _stream_edges(path: str, edges: list[int]) -> list[int]:
    """Moves each edge to the next start of a bzip2 stream, and drops edges without a stream soon after."""
    found = {0, edges[-1]}
    with files.open_read(path) as file:
        for edge in edges[1:-1]:
            start = _next_stream(file, edge)
            if start is None:
                break  # avoids searching a file of one stream from every edge
            found.add(start)
    return sorted(found)


def _next_stream(file: BinaryIO, offset: int) -> int | None:
    file.seek(offset)
    end, tail = offset + _LONGEST_STREAM, b""
    while offset < end and (data := file.read(1 << 20)):
        match = _STREAM.search(tail + data)
        if match:
            return offset - len(tail) + match.start()
        offset += len(data)
        tail = (tail + data)[-9:]
    return None
