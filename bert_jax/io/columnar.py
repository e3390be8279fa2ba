"""Reads rows of Hugging Face's Parquet and Arrow files without the library `datasets`."""

from __future__ import annotations

import contextlib
import functools
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
    """A Parquet or Arrow file, whose rows are read in order, a few at a time.

    A remote Arrow file is copied to the local disk once, for as long as the table exists.

    Attributes:
        columns: the names of the columns.
        types: {column: Arrow's name of its type}, for the columns whose values are never text.

    Raises:
        UserError: the file does not exist, or is damaged.
        StorageError: the disk or the bucket failed.
    """

    def __init__(self, path: files.PathLike):
        self.path = str(path)
        with self._opened() as (schema, _):
            self.columns = tuple(schema.names)
            self._classes = _class_names(schema)
            self.types = {
                field.name: str(field.type)
                for field in schema
                if not (field.name in self._classes or _may_be_text(field.type))
            }

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Any, Any]]:
        """Yields the schema and the open file."""
        try:
            with contextlib.ExitStack() as stack:
                if self.path.lower().endswith(SUFFIXES[0]):
                    # Reads only the needed bytes, even of remote files; the default is whole row groups.
                    source = stack.enter_context(files.open_read(self.path))
                    file = stack.enter_context(
                        parquet.ParquetFile(source, pre_buffer=False, buffer_size=_BUFFER)
                    )
                    yield file.schema_arrow, file
                    return
                try:  # as `save_to_disk` writes them
                    reader = stack.enter_context(ipc.open_stream(self._content))
                except pyarrow.ArrowInvalid:
                    reader = stack.enter_context(ipc.open_file(self._content))
                yield reader.schema, reader
        except (OSError, pyarrow.ArrowException, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno:
                raise file_error(f"{self.path}: cannot be read ({error.strerror})", error) from None
            raise UserError(f"{self.path}: cannot be read ({first_line(error)})") from None  # it is damaged

    @functools.cached_property
    def _content(self) -> Any:
        """The buffer of an Arrow file, mapped into memory."""
        # A copy is deleted here but stays mapped: its space is free when the table or the process ends.
        with files.local_copy(self.path) as local, pyarrow.memory_map(local) as file:
            return file.read_buffer()

    def __len__(self) -> int:
        with self._opened() as (_, file):
            if hasattr(file, "iter_batches"):
                return file.metadata.num_rows
            return sum(batch.num_rows for batch in _batches(file, []))

    def group_starts(self) -> list[int]:
        """Returns the first rows of the row groups of a Parquet file; none for an Arrow file.

        Reading from another row of a group also decodes the rows of the group before it.
        """
        with self._opened() as (_, file):
            if not hasattr(file, "iter_batches"):
                return []
            groups = (file.metadata.row_group(group) for group in range(file.metadata.num_row_groups))
            return [0, *itertools.accumulate(group.num_rows for group in groups)][:-1]

    def rows(
        self, columns: Sequence[str] = (), start: int = 0, end: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields rows as {column: value}, as Python values.

        Class numbers become class names if the file has them. Bytes that are UTF-8 become text. By default,
        all columns and all rows are read; `end` is the number of the row after the last one.

        Raises:
            UserError: the file is damaged, text is not UTF-8, or a value has no Python equivalent.
        """
        names = list(columns) or list(self.columns)
        place = 0
        with self._opened() as (_, file):
            for batch in _batches(file, names, start):
                first, place = place, place + batch.num_rows
                values = dict(zip(batch.schema.names, batch.columns, strict=True))
                # Each row is converted on request: Python values of all rows would be a copy.
                for number in range(max(start, first), place if end is None else min(place, end)):
                    yield {name: self._named(name, values[name][number - first].as_py()) for name in names}
                if end is not None and place >= end:
                    return  # without reading what comes after it

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


def _batches(file: Any, columns: Sequence[str], start: int = 0) -> Iterator[Any]:
    """Yields record batches with some columns; for Parquet, row groups before `start` are empty batches."""
    if hasattr(file, "iter_batches"):
        place = 0
        for group in range(file.metadata.num_row_groups):
            metadata = file.metadata.row_group(group)
            count = metadata.num_rows
            place += count
            if place <= start:  # not read, but counted
                yield pyarrow.RecordBatch.from_pydict({"skipped": pyarrow.nulls(count)})
                continue
            size = _rows_at_a_time(metadata, columns)
            yield from file.iter_batches(size, row_groups=[group], columns=list(columns))
        return
    is_file = hasattr(file, "num_record_batches")
    found = map(file.get_batch, range(file.num_record_batches)) if is_file else file
    for batch in found:
        batch = batch.select(list(columns)) if columns else batch
        batch.validate(full=True)  # reading text at a damaged offset would end the process
        yield batch


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
