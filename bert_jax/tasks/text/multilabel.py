"""Multi-label classification: each text has any number of labels."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import ClassPredictions
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import (
    LABEL_SEPARATOR,
    Examples,
    label_numbers,
    list_counts,
    list_in_cell,
    unknown_label,
)
from bert_jax.tasks.text.task import TextTask

with epy.lazy_imports():  # it takes seconds to import
    from sklearn import metrics as sklearn_metrics

_THRESHOLD = 0.5


@dataclasses.dataclass
class LabelSets(ClassPredictions):
    """Predictions of a multi-label classification: all labels whose probability is above 0.5.

    Attributes:
        targets: bool [N, C], the true labels; empty if the examples have no labels.
    """

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns whether each label is predicted: bool [N, C]."""
        return self.outputs > _THRESHOLD

    @property
    def confidence(self) -> np.ndarray:
        """Returns the highest confidence among the wrong decisions for each example: float32 [N].

        It is 0 for an example whose labels are all predicted correctly.
        """
        certainty = np.maximum(self.outputs, 1 - self.outputs)
        return np.where(self.predicted == self.targets, 0, certainty).max(axis=1)

    def values(self) -> list[list[str]]:
        return [[self.labels[i] for i in np.flatnonzero(row).tolist()] for row in self.predicted]

    def truths(self) -> list[list[str]]:
        return [list(labels) for labels in self.examples.labels]

    def confusions(self) -> None:
        """Returns None, because a text has several labels."""

    def plot(self, path: str) -> None:
        error_analysis.plot_by_label(path, _f1(self.predicted, self.targets, None), self.labels, "F1")


def _f1(predicted: np.ndarray, targets: np.ndarray, average: str | None) -> Any:
    if targets.shape[1] > 1:
        return sklearn_metrics.f1_score(targets, predicted, average=average, zero_division=0.0)
    # scikit-learn takes a single column for two classes.
    of_label = sklearn_metrics.f1_score(targets[:, 0] > 0, predicted[:, 0] > 0, zero_division=0.0)
    return of_label if average else np.array([of_label])


def _exact_match(predicted: np.ndarray, targets: np.ndarray) -> Any:
    return np.mean(np.all(predicted == targets, axis=1))


def _parse(text: str) -> tuple[str, ...]:
    given = list_in_cell(text, "label")
    if given is None:
        if text.strip().startswith("[") and text.strip().endswith("]"):
            raise ValueError(
                f"the labels {text.strip()!r:.80} are no JSON list of texts or numbers, such as "
                '["a", "b"] or [1, 2]'
            )
        given = text.split(LABEL_SEPARATOR)
    elif several := next((label for label in given if LABEL_SEPARATOR in label), ""):
        raise ValueError(f"the label {several!r} has a {LABEL_SEPARATOR!r}, which separates labels")
    return tuple(dict.fromkeys(label.strip() for label in given if label.strip()))


class MultiLabel(TextTask):
    """Multi-label classification: a label is predicted if its probability is above 0.5."""

    title = "multilabel"
    kind = "multilabel"
    problem_type = "multi_label_classification"
    label_may_be_empty = True
    target_dtype = np.float32
    Predictions = LabelSets
    scorers = {  # noqa: RUF012
        "f1_micro": functools.partial(_f1, average="micro"),
        "f1_macro": functools.partial(_f1, average="macro"),
        "exact_match": _exact_match,
    }

    @property
    def scores_pairs(self) -> bool:
        return False

    def read_training(self, path: str) -> Examples:
        """Returns the examples; the labels are all labels of the file, sorted."""
        examples = super().read_training(path)
        self.labels = tuple(sorted({label for labels in examples.labels for label in labels}))
        if not self.labels:
            raise UserError(
                f"{path}: none of the {counted(len(examples), 'row')} has a label; check data.label"
            )
        return examples

    def parse_label(self, text: str) -> tuple[str, ...]:
        found = _parse(text)
        for label in found:
            if self.labels and label not in self.numbers:
                raise ValueError(unknown_label(self.labels, label))
        return found

    parse_any_label = staticmethod(_parse)

    def targets(self, examples: Examples, names: Sequence[str]) -> np.ndarray:
        """Returns bool [N, C], true for the labels of each example among `names`; no rows without labels."""
        found = np.zeros((len(examples.labels), len(names)), bool)
        numbers = label_numbers(names)
        for row, labels in zip(found, examples.labels, strict=True):
            row[[numbers[label] for label in labels if label in numbers]] = True
        return found

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        if not examples.labels:
            return ""
        counts = Counter(label for labels in examples.labels for label in labels)
        none = sum(not labels for labels in examples.labels)
        return f"labels {list_counts({name: counts[name] for name in self.labels})}; none: {none:,}"
