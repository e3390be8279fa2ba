"""The decoded predictions of a model for the examples of a file.

Outputs are decoded once; scores, files, the list of mistakes and streams use the result.
"""

from __future__ import annotations

import abc
import codecs
import csv
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.io import atomic, files
from bert_jax.tasks.table import LABEL_SEPARATOR, Examples

ERRORS_FILE = "errors-dev.tsv"
DIGITS = 6  # decimal places of the probabilities in prediction files
_SAME = 1e-3  # predictions with at most this fraction of the targets' range count as constant


class Predictions(abc.ABC):
    """Base class of the decoded predictions for a file's examples, in the order of the file."""

    @abc.abstractmethod
    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example as a JSON object, with its `id`."""

    @abc.abstractmethod
    def write(self, path: str) -> None:
        """Writes the predictions to `path`, whose suffix is one of `FinetuneTask.formats`."""

    def mistakes(self) -> Iterable[tuple[Any, ...]] | None:
        """Returns (id, label, prediction, confidence, text, second text) for each wrong example, in order.

        For regression, the confidence is the absolute error. Returns None for tasks without such a list.
        """
        return None

    def write_mistakes(self, directory: str) -> None:
        """Writes the mistakes to errors-dev.tsv in a directory, the most confident first."""
        if (found := self.mistakes()) is not None:
            rows = sorted(found, key=lambda row: -row[3])
            shown = ((*row[:3], f"{row[3]:.4f}", *row[4:]) for row in rows)
            header = ("id", "label", "prediction", "confidence", "text_a", "text_b")
            write_table(os.path.join(directory, ERRORS_FILE), header, shown)

    @abc.abstractmethod
    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether training failed, that is, the predictions do not distinguish the examples."""

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Returns {class or language: {metric: value}}; empty for tasks without such scores."""
        return {}


@dataclasses.dataclass
class TablePredictions(Predictions):
    """Predictions with one row of outputs per example of a table.

    Attributes:
        outputs: float32 [N, C], one column per label; [N, 1] for a task without labels.
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
        """Returns the predictions in the format of the targets."""

    def values(self) -> Sequence[Any]:
        """Returns the prediction of each example as a JSON value: the only output, with 7 digits."""
        return [float(f"{value:.7g}") for value in self.outputs[:, 0].tolist()]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the prediction of each example, with its language and probabilities if available."""
        languages = [{"language": name} for name in self.examples.languages] or [{}] * len(self.examples)
        columns = self.examples.ids, languages, self.values(), self.outputs
        for id_, language, value, row in zip(*columns, strict=True):
            record = {"id": id_, **language, "prediction": value}
            if self.labels:
                rounded = [round(p, DIGITS) for p in row.tolist()]
                record["probabilities"] = dict(zip(self.labels, rounded, strict=True))
            yield record

    def write(self, path: str) -> None:
        """Writes a .tsv or .csv file with a header and one row per example, or a .jsonl file of `records`."""
        suffix = files.suffix(path)
        if suffix == ".jsonl":
            write_json_lines(path, self.records())
            return
        names = ["id", *(["language"] if self.examples.languages else []), "prediction"]
        header = [*names, *(f"p({label})" for label in self.labels)]
        rows = (
            [
                *(_text(record[name]) for name in names),
                *(f"{p:.{DIGITS}f}" for p in record.get("probabilities", {}).values()),
            ]
            for record in self.records()
        )
        write_table(path, header, rows, as_csv=suffix == ".csv")

    def listed(
        self, which: Iterable[int], truths: Sequence[Any], confidence: np.ndarray
    ) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of `mistakes` for some examples, with labels in the format of `values`."""
        values, second = self.values(), self.examples.texts_b or [""] * len(self.examples)
        for i in which:
            shown = _text(truths[i]), _text(values[i]), confidence[i]
            yield self.examples.ids[i], *shown, self.examples.texts_a[i], second[i]


def _text(value: str | float | Sequence[str]) -> str:
    if isinstance(value, float):
        return f"{value:.7g}"
    return value if isinstance(value, str) else LABEL_SEPARATOR.join(value)


@dataclasses.dataclass
class ClassPredictions(TablePredictions):
    """Predictions of a classification: the label with the highest probability."""

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns the numbers of the predicted labels, int64 [N]."""
        return np.argmax(self.outputs, axis=-1)

    @property
    def confidence(self) -> np.ndarray:
        """Returns the probability of each predicted label, float32 [N]."""
        return self.outputs.max(axis=-1)

    def values(self) -> Sequence[Any]:
        """Returns the names of the predicted labels."""
        return [self.labels[number] for number in self.predicted.tolist()]

    def truths(self) -> Sequence[Any]:
        """Returns the labels of the examples in the format of `values`."""
        return [self.labels[number] for number in self.targets.tolist()]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether every example has the same prediction."""
        return len(np.unique(self.predicted, axis=0)) == 1

    def mistakes(self) -> Iterator[tuple[Any, ...]]:
        """Yields the wrongly labeled examples."""
        right = (self.predicted == self.targets).reshape(len(self.targets), -1).all(axis=1)
        return self.listed(np.flatnonzero(~right), self.truths(), self.confidence)

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Returns {language: {"accuracy": ..., "examples": ...}}, if the languages are known."""
        languages, right = np.array(self.examples.languages), self.predicted == self.targets
        chosen = {name: right[languages == name] for name in dict.fromkeys(self.examples.languages)}
        return {name: {"accuracy": float(of.mean()), "examples": len(of)} for name, of in chosen.items()}


@dataclasses.dataclass
class NumberPredictions(TablePredictions):
    """Predictions of a regression: one number per example."""

    @property
    def predicted(self) -> np.ndarray:
        """Returns the predicted numbers, float32 [N]."""
        return self.outputs[:, 0]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the range of the predictions is at most 0.001 of the range of the targets."""
        return bool(np.ptp(self.outputs) <= _SAME * np.ptp(self.targets))

    def mistakes(self) -> Iterator[tuple[Any, ...]] | None:
        """Yields all examples."""
        errors = np.abs(self.predicted - self.targets)
        return self.listed(range(len(self.examples)), self.targets.tolist(), errors)


# Files


def write_json_lines(path: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a JSON lines file with one object per row."""
    with atomic.replace_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")


def write_table(
    path: str, header: Sequence[str], rows: Iterable[Sequence[Any]], *, as_csv: bool = False
) -> None:
    """Writes a table as CSV (RFC 4180), or as TSV with each run of whitespace replaced by one space."""
    lines = itertools.chain([header], rows)
    if not as_csv:
        lines = ([" ".join(str(value).split()) for value in row] for row in lines)
    with atomic.replace_file(path) as file:
        writer = codecs.getwriter("utf-8")(file)
        csv.writer(writer, delimiter="," if as_csv else "\t", lineterminator="\n").writerows(lines)
