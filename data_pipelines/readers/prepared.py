"""`tfds:NAME`: data sets prepared by tensorflow-datasets as array_record files, read without TensorFlow."""

from __future__ import annotations

import collections
import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.errors import UserError
from data_pipelines.readers.documents import Document, Fields, Passages, plain_paragraphs

if TYPE_CHECKING:
    from data_pipelines.readers.inputs import Range

PREFIX = "tfds:"
_SPLIT = "train"
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def find(pattern: str, data_dir: str = "", split: str = _SPLIT) -> str:
    """The folder of a prepared data set, after PREFIX.

    Args:
        pattern: tfds:NAME, tfds:NAME/CONFIG, either with /VERSION (the newest without), or tfds:/FOLDER.
        data_dir: Where data sets lie; "": $TFDS_DATA_DIR, or ~/tensorflow_datasets.
        split: One that it must have.

    Raises:
        UserError: It is not there, can't be read without TensorFlow, or the package is missing.
    """
    path = locate(pattern, data_dir)
    if not path:
        raise UserError(
            f"{pattern} is not prepared in {root(data_dir)}; make it there with tensorflow-datasets' "
            "download_and_prepare (file_format='array_record'), or give --tfds_data_dir"
        )
    builder = _builder(path)
    if split not in builder.info.splits:
        raise UserError(f"{pattern} has no split {split!r}, only {', '.join(sorted(builder.info.splits))}")
    if builder.info.file_format is None or builder.info.file_format.value != "array_record":
        raise UserError(
            f"{pattern} is prepared as {getattr(builder.info.file_format, 'value', None)}; expected "
            "array_record: prepare it again with file_format='array_record'"
        )
    return path


def root(data_dir: str = "") -> Path:
    """Where data sets lie."""
    return Path(data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()


def locate(pattern: str, data_dir: str = "") -> str:
    """The folder of a prepared data set, after PREFIX, as `find` takes it; "" where there is none."""
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
def _builder(path: str) -> Any:
    try:
        import array_record.python.array_record_data_source  # noqa: F401
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise UserError(
            f"{path} needs tensorflow-datasets and array_record ({error}): pip install them"
        ) from None
    try:
        return tfds.builder_from_directory(path.removeprefix(PREFIX))
    except Exception as error:  # of whatever its JSON files lack
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"can't read the data set in {path.removeprefix(PREFIX)} ({reason}); prepare it again"
        ) from None


def name(path: str) -> str:
    """NAME/CONFIG/VERSION of a data set that `find` found."""
    return _builder(path).info.full_name


def length(path: str) -> int:
    """Its records."""
    return _builder(path).info.splits[_SPLIT].num_examples


def files(path: str, split: str = _SPLIT) -> list[str]:
    """Its files, in order."""
    return [os.fspath(file) for file in _builder(path).info.splits[split].filepaths]


def features(path: str) -> Any:
    """What its records hold: tensorflow-datasets' features by name."""
    return _builder(path).info.features


def open_split(path: str, split: str) -> Sequence[dict[str, Any]]:
    """The records of a split.

    Raises:
        UserError: Its files can't be read.
    """
    try:
        return _builder(path).as_data_source(split=split)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"can't read {path} ({reason}); prepare it again") from None


def record(source: Sequence[dict[str, Any]], place: int, path: str) -> dict[str, Any]:
    """A record of what `open_split` gave.

    Raises:
        UserError: It can't be read.
    """
    try:
        return source[place]
    except Exception as error:  # array_record's, of a damaged file
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"can't read record {place} of {path} ({reason}); prepare it again") from None


def size(path: str) -> int:
    """The bytes of its files."""
    return sum(map(os.path.getsize, files(path)))


def read(range_: Range, counts: collections.Counter[str], fields: Fields) -> Iterator[Document]:
    """Yields the documents of a range of records; newlines in their text separate paragraphs.

    Raises:
        UserError: The data set lacks a field, or its files can't be read.
    """
    builder = _builder(range_.path)
    for flag, field in (("text_field", fields.text), ("id_field", fields.id)):
        if field and field not in builder.info.features:
            raise UserError(
                f"--{flag}={field}: {range_.name} has no such field; it has "
                f"{', '.join(sorted(builder.info.features))}"
            )
    source = open_split(range_.path, _SPLIT)
    for place in range(range_.start, range_.end):
        found = record(source, place, range_.path)
        text = as_text(found[fields.text])
        key = as_text(found[fields.id]) if fields.id else f"{range_.name}:{place}"
        counts["bytes"] += len(text)
        passages = Passages(key, False, counts)
        for paragraph in plain_paragraphs(text, counts):
            yield from passages.add(paragraph, len(paragraph))
        yield from passages.rest()


def as_text(value: Any) -> str:
    """A field of a record."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
