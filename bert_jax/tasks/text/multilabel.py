"""Multi-label classification: each text has any number of labels."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError, optional_imports
from bert_jax.tasks import error_analysis, writers
from bert_jax.tasks.predictions import ERRORS_FILE, SCORES_FILE, ClassPredictions, by_label
from bert_jax.tasks.readers.file_rows import LABEL_SEPARATOR
from bert_jax.tasks.readers.tables import Examples
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.text.task import TextTask, list_counts

with optional_imports("metrics"):
    from sklearn import metrics as sklearn_metrics

_METRICS = ("f1_micro", "f1_macro", "exact_match")
_THRESHOLD = 0.5


@dataclasses.dataclass
class LabelSets(ClassPredictions):
    """Predictions of a multi-label classification: all labels whose probability is above 0.5.

    Attributes:
        predicted: bool [N, C], whether each label is predicted.
    """

    def __post_init__(self):
        self.predicted = self.outputs > _THRESHOLD

    @property
    def expected(self) -> np.ndarray:
        """Returns the true labels: bool [N, C]."""
        return self.targets > 0

    @property
    def confidence(self) -> np.ndarray:
        """Returns the highest confidence among the wrong decisions for each example: float32 [N].

        It is 0 for an example whose labels are all predicted correctly.
        """
        certainty = np.maximum(self.outputs, 1 - self.outputs)
        return np.where(self.predicted == self.expected, 0, certainty).max(axis=1)

    def names(self) -> list[list[str]]:
        """Returns the names of the labels predicted for each example."""
        return [[self.labels[i] for i in np.flatnonzero(row)] for row in self.predicted]

    def rows(self) -> list[list[Any]]:
        return [
            [id_, LABEL_SEPARATOR.join(names), *(f"{p:.6f}" for p in row)]
            for id_, names, row in zip(self.examples.ids, self.names(), self.outputs, strict=True)
        ]

    def records(self) -> list[dict[str, Any]]:
        return [
            {"id": id_, "prediction": names, "probabilities": by_label(self.labels, row)}
            for id_, names, row in zip(self.examples.ids, self.names(), self.outputs, strict=True)
        ]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether every example has the same predicted labels."""
        return len(np.unique(self.predicted, axis=0)) == 1

    def report(self, directory: str) -> None:
        self.write_errors(os.path.join(directory, ERRORS_FILE))
        scores = _f1(self.expected, self.predicted, None)
        error_analysis.plot_by_label(os.path.join(directory, SCORES_FILE), scores, self.labels, "F1")

    def write_errors(self, path: str) -> None:
        names, confidence = self.names(), self.confidence
        writers.write_table(
            path,
            ["line", "label", "prediction", "confidence", "text_a", "text_b"],
            (
                [
                    *(self.examples.lines[i], LABEL_SEPARATOR.join(self.examples.labels[i])),
                    *(LABEL_SEPARATOR.join(names[i]), f"{confidence[i]:.4f}", *self.texts(i)),
                ]
                for i in error_analysis.surest_first(confidence == 0, confidence)
            ),
        )


class MultiLabel(TextTask):
    """Multi-label classification: a label is predicted if its probability is above 0.5."""

    title = "multilabel"
    kind = "multilabel"
    problem_type = "multi_label_classification"
    label_may_be_empty = True

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, model_config, path):
        examples = cls(config, spec, None, tokenizer, model_config).read(path)
        counts = Counter(label for labels in examples.labels for label in labels)
        if not counts:
            raise UserError(f"{path}: none of the {len(examples)} rows has a label; check data.label")
        return cls(config, spec, tuple(sorted(counts)), tokenizer, model_config), examples

    def known_metrics(self) -> tuple[Collection[str], str]:
        return _METRICS, "several labels"

    def parse_label(self, text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(label.strip() for label in text.split(LABEL_SEPARATOR) if label.strip()))
        for label in found:
            if self.labels and label not in self.labels:
                shown = ", ".join(map(repr, self.labels[:10])) + (", ..." if len(self.labels) > 10 else "")
                raise ValueError(f"label {label!r} is none of {shown}")
        return found

    def encode(self, examples: Examples) -> EncodedRows:
        rows = super().encode(dataclasses.replace(examples, labels=None))
        if examples.labels is not None:
            numbers = {label: number for number, label in enumerate(self.labels)}
            targets = np.zeros((len(examples), len(self.labels)), np.float32)
            for row, labels in enumerate(examples.labels):
                targets[row, [numbers[label] for label in labels]] = 1
            rows.targets["targets"] = targets[rows.examples]
        return rows

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> LabelSets:
        return LabelSets(examples, outputs, self.targets_if_any(rows), self.labels)

    def score(self, predictions: LabelSets) -> dict[str, float]:
        given, right = predictions.predicted, predictions.expected
        found = {
            "f1_micro": float(_f1(right, given, "micro")),
            "f1_macro": float(_f1(right, given, "macro")),
            "exact_match": float(np.mean(np.all(given == right, axis=1))),
        }
        return {name: found[name] for name in self.metrics}

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        if examples.labels is None:
            return ""
        counts = self.targets(rows).sum(axis=0).astype(int)
        none = sum(not labels for labels in examples.labels)
        return f"labels {list_counts(self.labels, counts)}; none: {none:,}"


def _f1(expected: np.ndarray, predicted: np.ndarray, average: str | None) -> Any:
    return sklearn_metrics.f1_score(expected, predicted, average=average, zero_division=0.0)
