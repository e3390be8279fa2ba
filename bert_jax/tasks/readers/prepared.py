"""Reads GLUE as prepared by tensorflow-datasets, without TensorFlow.

The rows, the labels and their order are the same as in GLUE's own files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import tfds
from bert_jax.tasks.readers.tables import Columns, Examples

PREFIX = tfds.PREFIX

# The names of the text features, in the order in which the model reads the texts.
_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
)
_DIAGNOSTIC = "diagnostic"  # one of MNLI's files, but a separate data set in tensorflow-datasets


def find(task: str, data_dir: str, split: str) -> str:
    """Returns the path of a prepared split for `read`: PREFIX, its folder, / and the name of the split.

    Args:
        task: the GLUE task, by the name of its configuration in tensorflow-datasets.
        data_dir: PREFIX followed by "glue", by the folder of that data set, or by the folder that contains
            it.
        split: the split by the name of GLUE's file, such as dev_matched.

    Raises:
        UserError: the split is not prepared. The message gives the command that prepares it.
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
    """Returns the files of a split, whose path `find` returned."""
    folder, _, split = path.rpartition("/")
    return tfds.files(folder, split)


def read(path: str, columns: Columns, parse_label: Callable[[str], object] | None) -> Examples:
    """Returns the examples of a split in the order of GLUE's file, with its row numbers as ids.

    Args:
        path: the path of the split, as `find` returned it.
        columns: the columns of GLUE's file, which determine whether there are labels and second texts.
        parse_label: called with the name of a label, or with its number if GLUE's file has numbers; None to
            read no labels.

    Raises:
        UserError: the data set lacks these columns, or its labels.
    """
    folder, _, split = path.rpartition("/")
    features = tfds.builder(folder).info.features
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
    labels = []
    if parse_label and columns.label:
        labels = _labels(path, features["label"], [row["label"] for row in rows], parse_label)
    lines = [place + 1 for place in places]
    ids = list(map(str, places))
    return Examples(path, ids, first, second[0] if second else [], labels, lines, rows=len(rows))


def _labels(path: str, feature: Any, values: list[Any], parse_label: Callable[[str], object]) -> list[object]:
    names: Sequence[str] = getattr(feature, "names", None) or ()
    if max(values) < 0:  # test sets have the label -1 in each row
        raise UserError(f"{path}: a split without labels is one for `bert-jax predict`")

    @functools.cache
    def label(number: int) -> object:
        try:
            return parse_label(names[number])
        except ValueError:
            return parse_label(str(number))

    try:
        return [label(int(value)) if names else parse_label(str(value)) for value in values]
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
