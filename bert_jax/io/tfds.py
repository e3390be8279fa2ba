"""Reads data sets of tensorflow-datasets (`tfds:NAME`), prepared as array_record files, without TensorFlow.

In this module a path is PREFIX followed by the absolute folder of a data set, as `find` returns it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etils import epy

from bert_jax.errors import UserError
from bert_jax.io.wording import first_line

with epy.lazy_imports():
    import tensorflow_datasets

PREFIX = "tfds:"
SPLIT = "train"  # the split that is read
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find(pattern: str) -> str:
    """Returns the folder of a data set, downloaded and prepared if needed, prefixed with PREFIX.

    `pattern` is tfds:NAME, tfds:NAME/CONFIG, either followed by /VERSION (by default the newest), or
    tfds:/FOLDER. Data sets are in $TFDS_DATA_DIR, or ~/tensorflow_datasets.
    """
    root = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    name = pattern.removeprefix(PREFIX)
    folder = root / name
    versions = []
    if name and folder.is_dir():
        versions = [path for path in folder.iterdir() if _VERSION.fullmatch(path.name) and _is_data_set(path)]
        versions.sort(key=lambda path: tuple(map(int, path.name.split("."))))
    found = [folder] if name and _is_data_set(folder) else versions
    path = f"{PREFIX}{(found[-1] if found else _prepare(name, root)).resolve()}"
    open_split(path, SPLIT)
    return path


def _prepare(name: str, root: Path) -> Path:
    """Returns the folder of a data set, after downloading and preparing it if needed."""
    with _unreadable(f"{PREFIX}{name} in {root}"):
        # Without TensorFlow, this module must be imported to register its builders (glue, c4, ...).
        importlib.import_module("tensorflow_datasets.text")
        name_and_version = re.sub(rf"/({_VERSION.pattern})$", r":\1", name)
        made = tensorflow_datasets.builder(name_and_version, data_dir=root, file_format="array_record")
        made.download_and_prepare()
    return Path(made.data_path)


def _is_data_set(folder: Path) -> bool:
    return (folder / "dataset_info.json").is_file()


@functools.lru_cache(maxsize=8)
def builder(path: str) -> Any:
    """Returns the `DatasetBuilder` of a data set, whose `info` describes it."""
    with _unreadable(path):
        return tensorflow_datasets.builder_from_directory(path.removeprefix(PREFIX))


@contextlib.contextmanager
def _unreadable(what: str) -> Iterator[None]:
    """Turns any error of tensorflow-datasets and array_record, which raise many kinds, into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"cannot read {what} ({first_line(error)})") from None


def files(path: str) -> list[str]:
    """Returns the files of the split SPLIT, in order."""
    return [os.fspath(file) for file in builder(path).info.splits[SPLIT].filepaths]


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
