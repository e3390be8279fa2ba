"""Classification and regression of texts and pairs of texts, in tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.io import compression
from bert_jax.objectives.classification import Classification
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import Problem
from bert_jax.tasks.readers.sources import read_examples
from bert_jax.tasks.readers.tables import LINES, PREDICT_FLAGS, Columns, Examples, check_header
from bert_jax.tasks.rows import assembly, batches, predictions, windows
from bert_jax.tasks.text.labels import LabelSet, parse_number


class TextProblem(Problem):
    """A label or a number an example, from [CLS]. With `config.doc_stride`, those that are longer than a row
    have windows, each trained with the example's label; scored and written is the mean of their outputs.
    """

    def __init__(self, config, spec, labels, tokenizer, bert):
        super().__init__(config, spec, labels, tokenizer, bert)
        self._stride = config.doc_stride
        pairs = bool(columns_of(config, spec).text_b)
        room = tokenizer.layout.room(config.max_length, pairs)
        windows.check_stride(self._stride, config.max_length, room, pairs)

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        if spec.kind == "regression":
            return cls(config, spec, None, tokenizer, bert), read_labelled(config, spec, path, parse_number)
        known = LabelSet(spec.labels).checked if spec.labels else str
        examples = read_labelled(config, spec, path, known)
        inferred = LabelSet.infer(examples.labels, path)
        labels = LabelSet(spec.labels) if spec.labels else inferred
        examples.labels = [labels.index(name) for name in examples.labels]
        problem = cls(config, spec, labels.names, tokenizer, bert)
        problem.class_weights = parse_class_weights(config.class_weights, labels.names, examples.labels)
        return problem, examples

    packs = True
    class_weights: tuple[float, ...] = ()  # of the loss, in the order of the labels

    @property
    def task(self) -> Classification:
        return Classification(
            self.bert,
            self._outputs,
            self.spec.kind,
            self.class_weights,
            windows=bool(self._stride),
            token_types=self.tokenizer.layout.types,
        )

    @property
    def _outputs(self) -> int:
        return len(self.labels) if self.labels else 1

    @property
    def metrics(self) -> tuple[str, ...]:
        return metrics.choose(self.config.metrics, self.spec.metrics, self.spec.kind, self._outputs)

    def read(self, path: str) -> Examples:
        parse = LabelSet(self.labels).index if self.labels else parse_number
        return read_labelled(self.config, self.spec, path, parse)

    def read_unlabelled(self, path: str, *, test: bool = False, format: str = "auto", **columns) -> Examples:
        """`test`: the file has the columns of the benchmark's test set; `columns`: those that differ."""
        known = columns_of(self.config, self.spec)
        if format == "auto" and not columns and not test and _is_plain_text(path) and not known.text_b:
            # A run whose training file had to be given a format has others of it, whatever they are called.
            format = LINES if self.config.data.format == "auto" else self.config.data.format
        else:
            check_header(path, format, columns)
        if test and self.spec.test_columns:
            known = self.spec.test_columns
        known = dataclasses.replace(known, **columns)
        quoting = self.config.data.quoting
        return read_examples(
            path, known, file_format=format, quoting=quoting, parse_label=None, flags=PREDICT_FLAGS
        )

    def encode(self, examples: Examples) -> batches.EncodedRows:
        return assembly.encode(
            examples,
            self.tokenizer,
            self.config.max_length,
            self._stride,
            np.float32 if self.labels is None else np.int32,
        )

    def targets(self, data: batches.EncodedRows) -> np.ndarray:
        """Of each example: int32 or float32 [examples, ...]."""
        return data.targets["targets"][windows.first_rows(data.examples)]

    def loss(self, data: batches.EncodedRows, outputs: np.ndarray) -> float:
        """The mean over examples; where one has windows, that of their mean output."""
        return self.task.evaluation_loss(outputs, self.targets(data))

    def score(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, float]:
        values = outputs[:, 0] if self.labels is None else np.argmax(outputs, axis=-1)
        return metrics.score(self.metrics, self.spec.kind, values, self.targets(data))

    def write(self, path: str, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        predictions.write_predictions(path, examples.ids, outputs, self.labels)

    def records(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> list[dict]:
        return predictions.records(examples.ids, outputs, self.labels)

    def is_degenerate(self, scores: dict[str, float], outputs: np.ndarray) -> bool:
        """Whether every example gets the same label, or the same number."""
        if self.labels is None:
            return bool(np.ptp(outputs) < 1e-3)
        return len(np.unique(np.argmax(outputs, axis=-1))) == 1

    def report(
        self, directory: Any, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray
    ) -> None:
        """errors-dev.tsv, the mistakes by confidence, and scores-dev.png: confusions, or numbers beside
        those predicted.
        """
        targets = self.targets(data)
        error_analysis.write_errors(
            os.path.join(directory, "errors-dev.tsv"), examples, targets, outputs, self.labels
        )
        if self.labels is None:
            error_analysis.plot_numbers(os.path.join(directory, "scores-dev.png"), targets, outputs[:, 0])
        else:
            error_analysis.plot_confusions(
                os.path.join(directory, "scores-dev.png"), targets, np.argmax(outputs, axis=-1), self.labels
            )

    def describe(self, examples: Examples, data: batches.EncodedRows) -> str:
        if not self.labels or examples.labels is None:
            return ""
        counts = np.bincount(self.targets(data), minlength=len(self.labels))
        shown = [f"{name}: {count:,}" for name, count in zip(self.labels, counts, strict=True)]
        text = "labels " + ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")
        one_class = np.count_nonzero(counts) == 1
        return text + ("; warning: one class only, so scores say little" if one_class else "")


def _is_plain_text(path: str) -> bool:
    return compression.strip_suffix(str(path)).lower().endswith(".txt")


def parse_class_weights(text: str, labels: Sequence[str], targets: Sequence[int]) -> tuple[float, ...]:
    """Weights by label: of "balanced", N / (C n) for a label of n of N examples; or as they are given.

    Raises:
      UserError: a label that there is not, or a weight that is no number over 0.
    """
    if not text:
        return ()
    if text == "balanced":
        counts = np.bincount(targets, minlength=len(labels))
        return tuple(float(len(targets) / (len(labels) * max(1, count))) for count in counts)
    weights = dict.fromkeys(labels, 1.0)
    for part in text.split(","):
        label, _, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if label.strip() not in weights or not 0 < weight < float("inf"):
            raise UserError(
                f"class_weights={text}: {part!r} is no LABEL=WEIGHT with one of {', '.join(labels)}; "
                "or give balanced"
            )
        weights[label.strip()] = weight
    return tuple(weights.values())


def columns_of(config: Any, spec: tasks.TaskSpec) -> Columns:
    """Returns the columns of a run's files.

    A task that is known by name has columns of its own. A configuration that names a text or the label
    describes another table, and then names every column of it; the other fields alone replace what they name.
    """
    data = config.data
    if spec.columns is not None and not (data.text_a or data.text_b or data.label):
        given = {name: data[name] for name in ("id", "choices") if data[name]}
        return dataclasses.replace(spec.columns, **given, header=spec.columns.header and data.header)
    return Columns(data.text_a, data.text_b, data.label, data.id, data.header, data.choices)


def read_labelled(
    config: Any, spec: tasks.TaskSpec, path: str, parse_label: Callable[[str], Any]
) -> Examples:
    """The examples of a file, with their labels."""
    columns = columns_of(config, spec)
    if not columns.label:
        raise UserError("which column holds the label? give --config.data.label=COLUMN")
    data = config.data
    return read_examples(
        path, columns, file_format=data.format, quoting=data.quoting, parse_label=parse_label
    )
