"""What a model predicts for the examples of a file, decoded once.

Scores, files, reports, pictures and streams are all made from it.
"""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.io import files
from bert_jax.tasks import error_analysis, writers
from bert_jax.tasks.readers.tables import Examples

TABLE_FORMATS = (".tsv", ".csv", ".jsonl")
ERRORS_FILE, SCORES_FILE = "errors-dev.tsv", "scores-dev.png"


class Predictions(abc.ABC):
    """The decoded predictions for a file's examples, in their order."""

    @abc.abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Returns the prediction of each example as a JSON object, with its `id`."""

    @abc.abstractmethod
    def write(self, path: str) -> None:
        """Writes the predictions; `path` has a suffix of `FinetuneTask.formats`."""

    @abc.abstractmethod
    def report(self, directory: str) -> None:
        """Writes what helps a person to judge the predictions of a labelled file into a directory: the
        mistakes, the most confident first, to errors-dev.tsv, and a picture to scores-dev.png.
        """

    @abc.abstractmethod
    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the model has learned nothing that distinguishes examples."""

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Returns scores by class; nothing where a task has no such table."""
        return {}


@dataclasses.dataclass
class TablePredictions(Predictions):
    """One row of numbers for each example of a table.

    Attributes:
        examples: with or without labels.
        outputs: float32 [N, C], one column for each label; [N, 1] where there are none.
        targets: [N, ...]; None without labels.
    """

    examples: Examples
    outputs: np.ndarray
    targets: np.ndarray | None

    @abc.abstractmethod
    def rows(self) -> list[list[Any]]:
        """Returns the columns of each example in a file of predictions."""

    @abc.abstractmethod
    def header(self) -> list[str]:
        """Returns the names of the columns."""

    def write(self, path: str) -> None:
        """Writes .tsv or .csv, a header and one row for each example; or .jsonl, one record on each line."""
        suffix = files.suffix(path)
        if suffix == ".jsonl":
            writers.write_json_lines(path, self.records())
        else:
            writers.write_table(path, self.header(), self.rows(), csv=suffix == ".csv")

    def texts(self, i: int) -> list[str]:
        """Returns the two texts of an example; an empty one where there is no second text."""
        return [self.examples.texts_a[i], self.examples.texts_b[i] if self.examples.texts_b else ""]


@dataclasses.dataclass
class ClassPredictions(TablePredictions):
    """The probability of each label; the most likely one is predicted.

    Attributes:
        labels: the C names.
    """

    labels: Sequence[str]

    def __post_init__(self):
        self.predicted = np.argmax(self.outputs, axis=-1)

    @property
    def confidence(self) -> np.ndarray:
        """Returns float32 [N], the probability of each predicted label."""
        return self.outputs.max(axis=-1)

    def header(self) -> list[str]:
        return ["id", "prediction", *(f"p({label})" for label in self.labels)]

    def rows(self) -> list[list[Any]]:
        return [
            [id_, self.labels[number], *(f"{p:.6f}" for p in row)]
            for id_, number, row in zip(self.examples.ids, self.predicted, self.outputs, strict=True)
        ]

    def records(self) -> list[dict[str, Any]]:
        return [
            {"id": id_, "prediction": self.labels[number], "probabilities": by_label(self.labels, row)}
            for id_, number, row in zip(self.examples.ids, self.predicted, self.outputs, strict=True)
        ]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether every example gets the same label."""
        return len(np.unique(self.predicted)) == 1

    def report(self, directory: str) -> None:
        self.write_errors(os.path.join(directory, ERRORS_FILE))
        error_analysis.plot_confusions(
            os.path.join(directory, SCORES_FILE), self.targets, self.predicted, self.labels
        )

    def write_errors(self, path: str) -> None:
        """Writes the examples with a wrong label, the most confident predictions first."""
        order = error_analysis.surest_first(self.predicted == self.targets, self.confidence)
        writers.write_table(
            path,
            ["line", "label", "prediction", "confidence", "text_a", "text_b"],
            (
                [
                    *(self.examples.lines[i], self.labels[self.targets[i]], self.labels[self.predicted[i]]),
                    *(f"{self.outputs[i, self.predicted[i]]:.4f}", *self.texts(i)),
                ]
                for i in order
            ),
        )


@dataclasses.dataclass
class NumberPredictions(TablePredictions):
    """One number for each example."""

    def header(self) -> list[str]:
        return ["id", "prediction"]

    def rows(self) -> list[list[Any]]:
        return [[id_, f"{row[0]:.6f}"] for id_, row in zip(self.examples.ids, self.outputs, strict=True)]

    def records(self) -> list[dict[str, Any]]:
        pairs = zip(self.examples.ids, self.outputs, strict=True)
        return [{"id": id_, "prediction": round(float(row[0]), 6)} for id_, row in pairs]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether every example gets the same number."""
        return bool(np.ptp(self.outputs) < 1e-3)

    def report(self, directory: str) -> None:
        self.write_errors(os.path.join(directory, ERRORS_FILE))
        error_analysis.plot_numbers(os.path.join(directory, SCORES_FILE), self.targets, self.outputs[:, 0])

    def write_errors(self, path: str) -> None:
        """Writes all examples, the largest difference first."""
        numbers = self.outputs[:, 0]
        order = np.argsort(-np.abs(numbers - self.targets), kind="stable")
        writers.write_table(
            path,
            ["line", "label", "prediction", "difference", "text_a", "text_b"],
            (
                [
                    *(self.examples.lines[i], f"{self.targets[i]:g}", f"{numbers[i]:.4f}"),
                    *(f"{numbers[i] - self.targets[i]:+.4f}", *self.texts(i)),
                ]
                for i in order
            ),
        )


def by_label(labels: Sequence[str], row: np.ndarray) -> dict[str, float]:
    """Returns the probabilities of a row by label, rounded for a file."""
    return {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)}
