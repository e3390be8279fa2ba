"""Selects the source of a split's examples by the scheme of its path.

A path that begins with `tfds:` is a data set prepared by tensorflow-datasets; any other path is a file or a
URL. No other module distinguishes between the two.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tasks.readers import prepared, tables
from bert_jax.tasks.readers.tables import Columns, Examples

PREPARED = prepared.PREFIX


class Source(Protocol):
    """Finds and reads the splits of a task."""

    def find(self, data_dir: str, spec: Any, splits: Sequence[str]) -> str:
        """Returns the path of a split.

        Args:
            data_dir: the folder or data set.
            spec: the `TaskSpec` of the task.
            splits: the names that the split may have, the most usual one first.

        Raises:
            UserError: the split does not exist. The message says what was expected.
        """

    def exists(self, path: str) -> bool:
        """Returns whether a path given by the user exists."""

    def read(self, path: str, columns: Columns, *, parse_label: Callable | None, **options: Any) -> Examples:
        """Returns the examples of a table; the options are those of `tables.read_examples`."""

    def parts(self, path: str) -> Sequence[str]:
        """Returns the files that a path refers to."""


class _Files:
    def find(self, data_dir: str, spec: Any, splits: Sequence[str]) -> str:
        names = [spec.file_name.format(split=name) for name in splits]
        tried = dict.fromkeys(
            os.path.join(data_dir, folder, name) for name in names for folder in (spec.folder, "")
        )
        for path in tried:
            if files.exists(path):
                return path
        expected = os.path.join(spec.folder, names[0])
        raise UserError(
            f"{spec.name}: found no {' and no '.join(tried)}; data_dir is the folder that holds {expected}"
        )

    def exists(self, path: str) -> bool:
        return files.exists(path)

    def read(self, path: str, columns: Columns, *, parse_label: Callable | None, **options: Any) -> Examples:
        return tables.read_examples(path, columns, parse_label=parse_label, **options)

    def parts(self, path: str) -> Sequence[str]:
        return [path]


class _Prepared:
    def find(self, data_dir: str, spec: Any, splits: Sequence[str]) -> str:
        if not spec.prepared:
            raise UserError(
                f"data_dir={data_dir}: {PREPARED} is for the tasks of GLUE; for {spec.name} give its folder"
            )
        return prepared.find(spec.name, data_dir, splits[0])

    def exists(self, path: str) -> bool:
        del path  # `find` has already checked it
        return True

    def read(self, path: str, columns: Columns, *, parse_label: Callable | None, **options: Any) -> Examples:
        del options  # they describe the format of a file
        return prepared.read(path, columns, parse_label)

    def parts(self, path: str) -> Sequence[str]:
        return prepared.files(path)


_FILES, _PREPARED = _Files(), _Prepared()


def is_prepared(path: str) -> bool:
    """Returns whether a path or `data_dir` refers to a data set prepared by tensorflow-datasets."""
    return str(path).startswith(PREPARED)


def source_of(path: str) -> Source:
    """Returns the source that reads a path or `data_dir`."""
    return _PREPARED if is_prepared(path) else _FILES


def read_examples(
    path: str, columns: Columns, *, parse_label: Callable[[str], Any] | None = str, **options: Any
) -> Examples:
    """Returns the examples of a table from its source; the options are those of `tables.read_examples`."""
    tables.check_columns(path, columns, options.get("flags", tables.TRAINING_FLAGS))
    return source_of(path).read(path, columns, parse_label=parse_label, **options)


def digest(path: str) -> str:
    """Returns the SHA-256 checksum of a split's files, as 64 hexadecimal digits."""
    result = hashlib.sha256()
    for part in source_of(path).parts(path):
        with files.open_read(part) as file:
            hashlib.file_digest(file, lambda: result)
    return result.hexdigest()
