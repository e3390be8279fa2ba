"""The decoded predictions of a model for the examples of a file.

Outputs are decoded once; scores, files, reports, plots and streams are all made from the result.
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
    """Base class of the decoded predictions for a file's examples, in the order of the file."""

    @abc.abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Returns the prediction of each example as a JSON object, with its `id`."""

    @abc.abstractmethod
    def write(self, path: str) -> None:
        """Writes the predictions to `path`, whose suffix is one of `FinetuneTask.formats`."""

    @abc.abstractmethod
    def report(self, directory: str) -> None:
        """Writes reports for error analysis on a labeled file to a directory.

        errors-dev.tsv lists the mistakes, the most confident first, and scores-dev.png is a plot of the
        scores.
        """

    @abc.abstractmethod
    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the model has failed to learn: its predictions do not distinguish the examples."""

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Returns {class: {metric: value}}; empty for tasks without scores by class."""
        return {}


@dataclasses.dataclass
class TablePredictions(Predictions):
    """Predictions with one row of outputs for each example of a table.

    Attributes:
        examples: the N examples, with or without labels.
        outputs: float32 [N, C], one column for each label; [N, 1] for a task without labels.
        targets: [N, ...]; None if the examples have no labels.
    """

    examples: Examples
    outputs: np.ndarray
    targets: np.ndarray | None

    @abc.abstractmethod
    def rows(self) -> list[list[Any]]:
        """Returns the values of each example in a file of predictions."""

    @abc.abstractmethod
    def header(self) -> list[str]:
        """Returns the names of the columns of `rows`."""

    def write(self, path: str) -> None:
        """Writes a .tsv or .csv file with a header and one row per example, or a .jsonl file of `records`."""
        suffix = files.suffix(path)
        if suffix == ".jsonl":
            writers.write_json_lines(path, self.records())
        else:
            writers.write_table(path, self.header(), self.rows(), csv=suffix == ".csv")

    def texts(self, i: int) -> list[str]:
        """Returns both texts of example `i`; the second one is empty for single texts."""
        return [self.examples.texts_a[i], self.examples.texts_b[i] if self.examples.texts_b else ""]


@dataclasses.dataclass
class ClassPredictions(TablePredictions):
    """Predictions of a classification: the label with the highest probability.

    Attributes:
        labels: the C label names.
        predicted: int64 [N], the numbers of the predicted labels.
    """

    labels: Sequence[str]

    def __post_init__(self):
        self.predicted = np.argmax(self.outputs, axis=-1)

    @property
    def confidence(self) -> np.ndarray:
        """Returns the probability of each predicted label: float32 [N]."""
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
        """Writes a table of the wrongly labeled examples, the most confident predictions first."""
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
    """Predictions of a regression: one number for each example."""

    def header(self) -> list[str]:
        return ["id", "prediction"]

    def rows(self) -> list[list[Any]]:
        return [[id_, f"{row[0]:.6f}"] for id_, row in zip(self.examples.ids, self.outputs, strict=True)]

    def records(self) -> list[dict[str, Any]]:
        pairs = zip(self.examples.ids, self.outputs, strict=True)
        return [{"id": id_, "prediction": round(float(row[0]), 6)} for id_, row in pairs]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether all predicted numbers are the same, up to 0.001."""
        return bool(np.ptp(self.outputs) < 1e-3)

    def report(self, directory: str) -> None:
        self.write_errors(os.path.join(directory, ERRORS_FILE))
        error_analysis.plot_numbers(os.path.join(directory, SCORES_FILE), self.targets, self.outputs[:, 0])

    def write_errors(self, path: str) -> None:
        """Writes a table of all examples, those with the largest absolute error first."""
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
    """Returns the probabilities of one example by label, rounded to six decimal places for a file."""
    return {label: round(float(p), 6) for label, p in zip(labels, row, strict=True)}
