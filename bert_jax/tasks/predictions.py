"""The decoded predictions of a model for the examples of a file.

Outputs are decoded once; scores, files, reports, plots and streams are all made from the result.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.io import files
from bert_jax.tasks import error_analysis, writers
from bert_jax.tasks.error_analysis import Confusions
from bert_jax.tasks.table import LABEL_SEPARATOR, Examples

TABLE_FORMATS = (".tsv", ".csv", ".jsonl")
ERRORS_FILE, SCORES_FILE = "errors-dev.tsv", "scores-dev.png"
DIGITS = 6  # decimal places of the probabilities in files of predictions
_SAME = 1e-3  # of the spread of the targets: predictions whose spread is at most this distinguish nothing


class Predictions(abc.ABC):
    """Base class of the decoded predictions for a file's examples, in the order of the file.

    Attributes:
        error_columns: the names of the columns of errors-dev.tsv.
    """

    error_columns: ClassVar[Sequence[str]]

    @abc.abstractmethod
    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example as a JSON object, with its `id`."""

    @abc.abstractmethod
    def write(self, path: str) -> None:
        """Writes the predictions to `path`, whose suffix is one of `FinetuneTask.formats`."""

    def report(self, directory: str) -> None:
        """Writes reports for error analysis on a labeled file to a directory.

        errors-dev.tsv lists the mistakes, the most confident first, and scores-dev.png is a plot of the
        scores.
        """
        writers.write_table(os.path.join(directory, ERRORS_FILE), self.error_columns, self.errors())
        self.plot(os.path.join(directory, SCORES_FILE))

    @abc.abstractmethod
    def errors(self) -> Iterable[Sequence[Any]]:
        """Yields the values of `error_columns` for each mistake, the most confident first."""

    @abc.abstractmethod
    def plot(self, path: str) -> None:
        """Draws a plot of the scores."""

    def confusions(self) -> Confusions | None:
        """Returns the confusion matrix of a labeled file; None for tasks without one and for many labels."""
        return None

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
        targets: [N, ...]; empty if the examples have no labels.
        labels: the C label names; empty for a task without labels.
    """

    examples: Examples
    outputs: np.ndarray
    targets: np.ndarray
    labels: Sequence[str] = ()

    @property
    @abc.abstractmethod
    def predicted(self) -> np.ndarray:
        """Returns the predictions in the form of the targets."""

    @abc.abstractmethod
    def values(self) -> Sequence[Any]:
        """Returns the prediction of each example as a JSON value."""

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example, with its language and probabilities, if there are any."""
        for record, row in zip(self._without_probabilities(), self.outputs, strict=True):
            if self.labels:
                shown = [round(p, DIGITS) for p in row.tolist()]
                record["probabilities"] = dict(zip(self.labels, shown, strict=True))
            yield record

    def _without_probabilities(self) -> Iterator[dict[str, Any]]:
        languages = [{"language": name} for name in self.examples.languages] or [{}] * len(self.examples)
        for id_, language, value in zip(self.examples.ids, languages, self.values(), strict=True):
            yield {"id": id_, **language, "prediction": value}

    def write(self, path: str) -> None:
        """Writes a .tsv or .csv file with a header and one row per example, or a .jsonl file of `records`."""
        suffix = files.suffix(path)
        if suffix == ".jsonl":
            writers.write_json_lines(path, self.records())
            return
        names = ["id", *(["language"] if self.examples.languages else []), "prediction"]
        header = [*names, *(f"p({label})" for label in self.labels)]
        # One format for all numbers of a row: with thousands of labels these are most of the time.
        line = " ".join([f"%.{DIGITS}f"] * len(self.labels))
        rows = (
            [*(_text(record[name]) for name in names), *(line % tuple(row.tolist())).split()]
            if self.labels
            else [_text(record[name]) for name in names]
            for record, row in zip(self._without_probabilities(), self.outputs, strict=True)
        )
        writers.write_table(path, header, rows, as_csv=suffix == ".csv")

    def texts(self, i: int) -> list[str]:
        """Returns both texts of example `i`; the second one is empty for single texts."""
        return [self.examples.texts_a[i], self.examples.texts_b[i] if self.examples.texts_b else ""]


def digits(value: float, sign: str = "-") -> str:
    """Returns a float32 number with 7 significant digits; with sign="+", all numbers have a sign."""
    return f"{value:{sign}.7g}"


def rounded(values: np.ndarray) -> list[float]:
    """Returns float32 numbers [N] rounded as `digits` does."""
    return [float(digits(value)) for value in values.tolist()]


def _text(value: str | float | Sequence[str]) -> str:
    if isinstance(value, float):
        return digits(value)
    return value if isinstance(value, str) else LABEL_SEPARATOR.join(value)


@dataclasses.dataclass
class ClassPredictions(TablePredictions):
    """Predictions of a classification: the label with the highest probability."""

    error_columns: ClassVar[Sequence[str]] = ("line", "label", "prediction", "confidence", "text_a", "text_b")

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns the numbers of the predicted labels: int64 [N]."""
        return np.argmax(self.outputs, axis=-1)

    @property
    def confidence(self) -> np.ndarray:
        """Returns the probability of each predicted label: float32 [N]."""
        return self.outputs.max(axis=-1)

    def values(self) -> Sequence[Any]:
        """Returns the names of the predicted labels."""
        return [self.labels[number] for number in self.predicted.tolist()]

    def truths(self) -> Sequence[Any]:
        """Returns the labels of the examples, in the form of `values`."""
        return [self.labels[number] for number in self.targets.tolist()]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether every example has the same prediction."""
        return len(np.unique(self.predicted, axis=0)) == 1

    def mistakes(self) -> np.ndarray:
        """Returns the numbers of the wrongly labeled examples, the most confident predictions first."""
        right = (self.predicted == self.targets).reshape(len(self.targets), -1).all(axis=1)
        return error_analysis.surest_first(right, self.confidence)

    def errors(self) -> Iterator[Sequence[Any]]:
        """Yields the wrongly labeled examples."""
        values, truths, confidence = self.values(), self.truths(), self.confidence
        for i in self.mistakes():
            shown = (_text(truths[i]), _text(values[i]), f"{confidence[i]:.4f}")
            yield self.examples.lines[i], *shown, *self.texts(i)

    def confusions(self) -> Confusions | None:
        """Returns the confusion matrix of the labels; None for more than 40."""
        return Confusions.of(self.targets, self.predicted, self.labels)

    def plot(self, path: str) -> None:
        """Plots the confusion matrix."""
        if found := self.confusions():
            error_analysis.plot_confusions(path, found)


@dataclasses.dataclass
class NumberPredictions(TablePredictions):
    """Predictions of a regression: one number for each example."""

    error_columns: ClassVar[Sequence[str]] = ("line", "label", "prediction", "difference", "text_a", "text_b")

    @property
    def predicted(self) -> np.ndarray:
        """Returns the predicted numbers: float32 [N]."""
        return self.outputs[:, 0]

    def values(self) -> list[float]:
        """Returns the predicted numbers, with 7 significant digits."""
        return rounded(self.predicted)

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether all predicted numbers are the same, up to 0.001 of the range of the targets."""
        return bool(np.ptp(self.outputs) <= _SAME * np.ptp(self.targets))

    def errors(self) -> Iterator[Sequence[Any]]:
        """Yields all examples, those with the largest absolute error first."""
        difference = self.predicted - self.targets
        for i in np.argsort(-np.abs(difference), kind="stable"):
            shown = (digits(self.targets[i]), digits(self.predicted[i]), digits(difference[i], "+"))
            yield self.examples.lines[i], *shown, *self.texts(i)

    def plot(self, path: str) -> None:
        """Plots the predictions against the labels."""
        error_analysis.plot_numbers(path, self.targets, self.predicted)
