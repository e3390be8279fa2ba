"""Selects the source of a split's examples by the scheme of its path.

A path that begins with `tfds:` is a data set prepared by tensorflow-datasets; any other path is a file or a
URL. No other module distinguishes between the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from bert_jax.io import columnar, comma_lists, files
from bert_jax.tasks.readers import prepared, tables
from bert_jax.tasks.readers.file_formats import TRAINING_FLAGS
from bert_jax.tasks.readers.tables import Columns, Examples

PREPARED = prepared.PREFIX
_CHUNK = 1 << 20  # bytes


def is_prepared(path: str) -> bool:
    """Returns whether a path or `data_dir` refers to a data set prepared by tensorflow-datasets."""
    return str(path).startswith(PREPARED)


def exists(path: str) -> bool:
    """Returns whether a path exists that the user gave or `TaskSpec.file` returned."""
    return is_prepared(path) or all(map(files.exists, parts(path)))


def parts(path: str) -> list[str]:
    """Returns the files of a path: those of a prepared data set or of a directory, or those of a list.

    A list is one of `comma_lists.paths`.
    """
    if is_prepared(path):
        return prepared.files(path)
    if files.is_directory(path):
        return columnar.files_in(str(path))
    return comma_lists.paths(str(path)) or [path]


def read_examples(
    path: str, columns: Columns, *, parse_label: Callable[[str], Any] | None = str, **options: Any
) -> Examples:
    """Returns the examples of a table from its source; the options are those of `tables.read_examples`."""
    if is_prepared(path):
        tables.check_columns(path, columns, options.get("flags", TRAINING_FLAGS))
        return prepared.read(path, columns, parse_label)
    return tables.read_examples(path, columns, parse_label=parse_label, **options)


def digest(path: str) -> str:
    """Returns the SHA-256 checksum of a split's files, as 64 hexadecimal digits."""
    result = hashlib.sha256()
    for part in parts(path):
        with files.open_read(part) as file:
            while content := file.read(_CHUNK):
                result.update(content)
    return result.hexdigest()
