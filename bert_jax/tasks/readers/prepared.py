"""GLUE as tensorflow-datasets prepares it, read without TensorFlow: rows, labels and order are those of
GLUE's own files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import tfds
from bert_jax.tasks.readers.tables import Columns, Examples

PREFIX = tfds.PREFIX

# What its data sets call their texts, in the order in which the model reads them.
_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
)
_DIAGNOSTIC = "diagnostic"  # of the files of MNLI; here a data set of its own


def find(task: str, data_dir: str, split: str) -> str:
    """The prepared split of a task, as `read` takes it: PREFIX, its folder, / and its name.

    Args:
        task: of GLUE, as tensorflow-datasets' configurations are called.
        data_dir: PREFIX and "glue", or the folder of that data set, or the folder that has it.
        split: as GLUE's files are called, such as dev_matched.

    Raises:
        UserError: it is not there, with the command that prepares it.
    """
    config, split = ("ax", "test") if split == _DIAGNOSTIC else (task, split.replace("dev", "validation"))
    given = data_dir.removeprefix(PREFIX).rstrip("/") or "glue"
    for name in (f"{given}/{config}", f"{given}/glue/{config}"):
        if tfds.locate(PREFIX + name):
            return f"{tfds.find(PREFIX + name, split=split)}/{split}"
    place = f", data_dir='{given.removesuffix('/glue')}'" if given.startswith("/") else ""
    raise UserError(
        f"data_dir={data_dir}: glue/{config} is not prepared in {tfds.root() / given}; run python -c "
        f"\"import tensorflow_datasets as tfds, tensorflow_datasets.text.glue; tfds.builder('glue/{config}', "
        f"file_format='array_record'{place}).download_and_prepare()\""
    )


def files(path: str) -> list[str]:
    """The files of a split that `find` found."""
    folder, _, split = path.rpartition("/")
    return tfds.files(folder, split)


def read(path: str, columns: Columns, parse_label: Callable[[str], object] | None) -> Examples:
    """The rows of a split that `find` found, in the order of GLUE's file, with its row numbers as ids.

    Args:
        columns: those of GLUE's file; they say whether there are labels and second texts.
        parse_label: takes a label's name, or its number where GLUE's file has that; None: no labels are read.

    Raises:
        UserError: it has no such columns, or no labels.
    """
    folder, _, split = path.rpartition("/")
    features = tfds.features(folder)
    texts = next((names for names in _TEXTS if all(name in features for name in names)), ())
    if len(texts) != 1 + bool(columns.text_b) or "idx" not in features:
        raise UserError(f"{path}: expected texts of GLUE and idx; it has {', '.join(sorted(features))}")
    source = tfds.open_split(folder, split)
    rows = [tfds.record(source, place, folder) for place in range(len(source))]
    if not rows:
        raise UserError(f"{path}: no rows")
    rows.sort(key=lambda row: int(row["idx"]))
    places = [int(row["idx"]) for row in rows]
    first, *second = ([tfds.as_text(row[name]) for row in rows] for name in texts)
    labels = None
    if parse_label is not None and columns.label:
        labels = _labels(path, features["label"], [row["label"] for row in rows], parse_label)
    lines = [place + 1 for place in places]
    ids = list(map(str, places))
    return Examples(path, ids, first, second[0] if second else None, labels, lines, rows=len(rows))


def _labels(path: str, feature: Any, values: list[Any], parse_label: Callable[[str], object]) -> list[object]:
    names = getattr(feature, "names", None)
    if max(values) < 0:  # -1 in each row
        raise UserError(f"{path}: a split without labels is one for `bert-jax predict`")

    @functools.cache
    def label(number):
        try:
            return parse_label(names[number])
        except ValueError:
            return parse_label(str(number))

    try:
        return [label(int(value)) if names else parse_label(str(value)) for value in values]
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
