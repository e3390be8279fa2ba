"""Reads rows of Hugging Face's Parquet and Arrow files without the library `datasets`."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from etils import epy

from bert_jax.errors import UserError, file_error
from bert_jax.io import files
from bert_jax.io.wording import first_line

with epy.lazy_imports():
    import pyarrow
    from pyarrow import ipc, parquet

SUFFIXES = (".parquet", ".arrow")
_CACHED = re.compile(r"cache-.*\.arrow$")
# A row's decoded size is not known before it is read, because a repeated value may be stored once.
_MOST_ROWS = 256  # rows of Parquet that are decoded at a time
_BATCH_BYTES = 16 << 20  # and about their stored size
_BUFFER = 1 << 20  # bytes of a column that are read at a time


def is_columnar(path: files.PathLike) -> bool:
    """Returns whether the name of a file is the name of a Parquet or Arrow file."""
    return str(path).lower().endswith(SUFFIXES)


class Table:
    """A Parquet or Arrow file, whose rows are read in order, a few at a time; UserError if it is damaged.

    A remote Arrow file is copied to the local disk once, for as long as the table exists.

    Attributes:
        columns: the names of the columns.
        types: {column: Arrow's name of its type}, for the columns whose values are never text.
        group_starts: the first rows of the row groups of a Parquet file; empty for an Arrow file. Reading
            from another row of a group also decodes the rows of the group before it.
    """

    def __init__(self, path: files.PathLike):
        self.path = str(path)
        self.group_starts: list[int] = []
        self._arrow: Any = None
        with self._errors():
            if self.path.lower().endswith(".parquet"):
                with self._parquet() as file:
                    schema, self._count = file.schema_arrow, file.metadata.num_rows
                    groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
                    self.group_starts = [0, *itertools.accumulate(group.num_rows for group in groups)][:-1]
            else:
                # A deleted copy stays mapped: its space is free when the table or the process ends.
                with files.local_copy(self.path) as local, pyarrow.memory_map(local) as mapped:
                    content = mapped.read_buffer()
                try:  # as `save_to_disk` writes them
                    self._arrow = ipc.open_stream(content).read_all()
                except pyarrow.ArrowInvalid:
                    self._arrow = ipc.open_file(content).read_all()
                schema, self._count = self._arrow.schema, self._arrow.num_rows
        self.columns = tuple(schema.names)
        self._classes = _class_names(schema)
        self.types = {
            field.name: str(field.type)
            for field in schema
            if not (field.name in self._classes or _may_be_text(field.type))
        }

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def _parquet(self) -> Iterator[Any]:
        # Reads only the needed bytes, even of remote files; the default is whole row groups.
        options = dict(pre_buffer=False, buffer_size=_BUFFER)
        with files.open_read(self.path) as source, parquet.ParquetFile(source, **options) as file:
            yield file

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno:
                raise file_error(f"{self.path}: cannot be read ({error.strerror})", error) from None
            raise UserError(f"{self.path}: cannot be read ({first_line(error)})") from None  # it is damaged

    def rows(
        self, columns: Sequence[str] = (), start: int = 0, end: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields rows as {column: Python value}; `end` is the number of the row after the last one.

        Class numbers become class names if the file has them. Bytes that are UTF-8 become text.
        """
        names = list(columns) or list(self.columns)
        end = self._count if end is None else min(end, self._count)
        with self._errors():
            for first, batch in self._batches(names, start):
                values = dict(zip(batch.schema.names, batch.columns, strict=True))
                # Each row is converted on request: Python values of all rows would be a copy.
                for number in range(max(start, first), min(end, first + batch.num_rows)):
                    yield {name: self._named(name, values[name][number - first].as_py()) for name in names}
                if first + batch.num_rows >= end:
                    return  # without reading what comes after it

    def _batches(self, columns: list[str], start: int) -> Iterator[tuple[int, Any]]:
        """Yields (the number of its first row, a record batch); the first batch contains row `start`."""
        if self._arrow is not None:
            for batch in self._arrow.select(columns).slice(start).to_batches():
                batch.validate(full=True)  # reading text at a damaged offset would end the process
                yield start, batch
                start += batch.num_rows
            return
        with self._parquet() as file:
            for group, first in enumerate(self.group_starts):
                metadata = file.metadata.row_group(group)
                if first + metadata.num_rows > start:
                    size = _rows_at_a_time(metadata, columns)
                    for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                        yield first, batch
                        first += batch.num_rows

    def _named(self, column: str, value: Any) -> Any:
        if isinstance(value, bytes):
            try:
                return value.decode("utf-8")
            except UnicodeDecodeError:
                return value
        names = self._classes.get(column)
        if names and isinstance(value, list):
            return [self._named(column, each) for each in value]
        if names and isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        return value


def _may_be_text(kind: Any) -> bool:
    """Returns whether values of an Arrow type may be text or bytes; the null type may be anything."""
    kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    return str(kind).removeprefix("large_").startswith(("string", "binary", "fixed_size_binary", "null"))


def _rows_at_a_time(group: Any, columns: Sequence[str]) -> int:
    """Returns the number of rows of a row group to decode at a time, from the stored size of some columns."""
    chunks = (group.column(number) for number in range(group.num_columns))
    stored = sum(
        chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns
    )
    return max(1, min(_MOST_ROWS, _BATCH_BYTES * group.num_rows // max(1, stored)))


def _class_names(schema: Any) -> Mapping[str, list[str]]:
    """Returns {column: names of its classes} for the ClassLabel columns of a Hugging Face data set."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        # A list of classes, such as tags, contains their feature.
        kinds = {name: kind.get("feature", kind) for name, kind in features.items() if isinstance(kind, dict)}
        return {
            name: [str(one) for one in kind["names"]]
            for name, kind in kinds.items()
            if kind.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def files_in(directory: str) -> list[str]:
    """Returns the Parquet and Arrow files of a directory, sorted by name, as `of_data_set` chooses them."""
    return [f"{directory.rstrip('/')}/{name}" for name in of_data_set(sorted(files.names(directory)))]


def of_data_set(paths: Iterable[str]) -> list[str]:
    """Returns the Parquet and Arrow files of some paths, without the caches of `datasets`."""
    found = [path for path in paths if is_columnar(path)]
    return [path for path in found if not _CACHED.match(files.name(path))] or found
