"""Reads data sets prepared by tensorflow-datasets as array_record files (`tfds:NAME`), without TensorFlow.

In this module a path is PREFIX followed by the absolute folder of a data set, as `find` returns it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epy

from bert_jax.errors import UserError

with epy.lazy_imports():
    import tensorflow_datasets
    from array_record.python import array_record_data_source

PREFIX = "tfds:"
SPLIT = "train"  # the default split
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find(pattern: str, data_dir: str = "", split: str = SPLIT) -> str:
    """Returns the folder of a prepared data set, prefixed with PREFIX.

    Args:
        pattern: tfds:NAME, tfds:NAME/CONFIG, either followed by /VERSION (by default the newest), or
            tfds:/FOLDER.
        data_dir: the folder that contains the data sets; "" means $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        split: a split that the data set must have.

    Raises:
        UserError: the data set does not exist, cannot be read without TensorFlow, or the package is missing.
    """
    path = locate(pattern, data_dir)
    info: Any = builder(path).info if path else None
    if not path or getattr(info.file_format, "value", None) != "array_record":
        raise UserError(
            f"{pattern} is not prepared in {root(data_dir)}; make it there with tensorflow-datasets' "
            "download_and_prepare (file_format='array_record'), or set TFDS_DATA_DIR"
        )
    if split not in info.splits:
        raise UserError(f"{pattern} has no split {split!r}, only {', '.join(sorted(info.splits))}")
    return path


def root(data_dir: str = "") -> Path:
    """Returns the folder that contains the data sets."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def locate(pattern: str, data_dir: str = "") -> str:
    """Returns the folder of a prepared data set, prefixed with PREFIX; "" if there is none."""
    name = pattern.removeprefix(PREFIX)
    folder = root(data_dir) / name
    versions = []
    if name and folder.is_dir():
        versions = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name) and _is_data_set(path)]
        versions.sort(key=lambda path: tuple(map(int, path.name.split("."))))
    found = [folder] if name and _is_data_set(folder) else versions
    return PREFIX + str(found[-1].resolve()) if found else ""


def _is_data_set(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file()


@functools.lru_cache(maxsize=8)
def builder(path: str) -> Any:
    """Returns the `DatasetBuilder` of a data set, whose `info` describes it."""
    try:
        _ = array_record_data_source.ArrayRecordDataSource  # tensorflow-datasets reads the files with it
        read_builder = tensorflow_datasets.builder_from_directory
    except ImportError as error:
        raise UserError(
            f"{path} needs tensorflow-datasets and array_record ({error}): pip install them"
        ) from None
    with _unreadable(f"the data set in {path.removeprefix(PREFIX)}"):
        return read_builder(path.removeprefix(PREFIX))


@contextlib.contextmanager
def _unreadable(what: str) -> Iterator[None]:
    """Turns any error of tensorflow-datasets and array_record, which raise many kinds, into a UserError."""
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"can't read {what} ({reason}); prepare it again") from None


def files(path: str, split: str = SPLIT) -> list[str]:
    """Returns the files of a split, in order."""
    return [os.fspath(file) for file in builder(path).info.splits[split].filepaths]


def open_split(path: str, split: str) -> Sequence[dict[str, Any]]:
    """Returns the records of a split, or raises UserError."""
    with _unreadable(path):
        return builder(path).as_data_source(split=split)


def record(source: Sequence[dict[str, Any]], place: int, path: str) -> dict[str, Any]:
    """Returns one record of a sequence that `open_split` returned, or raises UserError."""
    with _unreadable(f"record {place} of {path}"):
        return source[place]


def size(path: str) -> int:
    """Returns the total size in bytes of the files of the split SPLIT."""
    return sum(map(os.path.getsize, files(path)))


def as_text(value: Any) -> str:
    """Returns a field of a record as text; bytes that are not UTF-8 become U+FFFD."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
