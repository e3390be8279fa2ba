"""Classification and regression tasks on tables of texts or pairs of texts."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import compression
from bert_jax.objectives.classification import Classification
from bert_jax.tasks import metrics
from bert_jax.tasks.config import option
from bert_jax.tasks.predictions import ClassPredictions, NumberPredictions
from bert_jax.tasks.readers.tables import LINES, PREDICT_FLAGS, Examples, check_header
from bert_jax.tasks.rows import assembly, windows
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table_task import TableConfig, TableTask
from bert_jax.tasks.text.labels import LabelSet, parse_number


@dataclasses.dataclass(frozen=True)
class TextConfig(TableConfig):
    """The fields of tasks on texts and pairs of texts."""

    pack: bool = option(True, "random batches, several examples a row ([finetuning.md](finetuning.md))")


@dataclasses.dataclass(frozen=True)
class ClassificationConfig(TextConfig):
    """The fields of classification."""

    class_weights: str = option(
        "", "of the loss: `balanced`, by how rare a label is, or `LABEL=WEIGHT` with commas between"
    )


class TextTask(TableTask):
    """Base class of tasks that predict from the [CLS] of a text or a pair of texts."""

    Config = TextConfig
    config: TextConfig
    kind: str  # the `kind` of `objectives.classification.Classification`
    target_dtype: type = np.int32
    label_may_be_empty = False

    def __init__(self, config, spec, labels, tokenizer, model_config):
        super().__init__(config, spec, labels, tokenizer, model_config)
        pairs = bool(self.columns.text_b)
        room = tokenizer.layout.room(config.max_seq_length, pairs)
        windows.check_stride(config.doc_stride, config.max_seq_length, room, pairs)

    @property
    def packs(self) -> bool:
        return self.config.pack

    def read(self, path: str, labelled: bool = True, **options: Any) -> Examples:
        return self._read_labelled(path, self.parse_label) if labelled else self._read_texts(path, **options)

    @abc.abstractmethod
    def parse_label(self, text: str) -> Any:
        """Parses a label of a file. Raises ValueError for a label that the task does not have."""

    def _read_labelled(self, path: str, parse_label: Callable[[str], Any]) -> Examples:
        if not self.columns.label:
            what = "labels" if self.label_may_be_empty else "label"
            raise UserError(f"which column holds the {what}? give --config.data.label=COLUMN")
        return self.read_table(path, self.columns, parse_label, label_may_be_empty=self.label_may_be_empty)

    def _read_texts(self, path: str, *, test: bool = False, format: str = "auto", **columns: Any) -> Examples:
        known = self.columns
        if format == "auto" and not columns and not test and _is_plain_text(path) and not known.text_b:
            # If the format of the training file was configured, other files have that format too, whatever
            # their suffix is.
            format = LINES if self.config.data.format == "auto" else self.config.data.format
        else:
            check_header(path, format, columns)
        if test and self.spec.test_columns:
            known = self.spec.test_columns
        known = dataclasses.replace(known, **columns)
        return self.read_table(path, known, file_format=format, flags=PREDICT_FLAGS)

    def encode(self, examples: Examples) -> EncodedRows:
        c = self.config
        return assembly.encode(examples, self.tokenizer, c.max_seq_length, c.doc_stride, self.target_dtype)

    def objective(self) -> Classification:
        return Classification(
            self.model_config,
            self.num_outputs,
            self.kind,
            self.class_weights,
            windows=self.has_windows,
            token_types=self.tokenizer.layout.types,
        )

    class_weights: tuple[float, ...] = ()  # weights in the loss, in the order of the labels

    @property
    def num_outputs(self) -> int:
        """Returns the number of outputs of an example: one for each label, or one for regression."""
        return len(self.labels) if self.labels else 1


class TextClassification(TextTask):
    """Classification: one label for each example."""

    Config = ClassificationConfig
    config: ClassificationConfig
    title = "classification"
    kind = "classification"
    problem_type = "single_label_classification"

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, model_config, path):
        reader = cls(config, spec, None, tokenizer, model_config)
        examples = reader._read_labelled(path, LabelSet(spec.labels).checked if spec.labels else str)
        inferred = LabelSet.infer(examples.labels, path)
        labels = LabelSet(spec.labels) if spec.labels else inferred
        examples.labels = [labels.index(name) for name in examples.labels]
        task = cls(config, spec, labels.names, tokenizer, model_config)
        task.class_weights = parse_class_weights(config.class_weights, labels.names, examples.labels)
        return task, examples

    def parse_label(self, text: str) -> int:
        return LabelSet(self.labels).index(text)

    def known_metrics(self) -> tuple[Collection[str], str]:
        return metrics.CLASSIFICATION, "a classification task"

    @property
    def metrics(self) -> tuple[str, ...]:
        names = super().metrics
        if "f1" in names and self.num_outputs != 2:
            raise UserError(
                f"metrics: f1 is defined for two labels and there are {self.num_outputs}; use f1_macro"
            )
        return names

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> ClassPredictions:
        return ClassPredictions(examples, outputs, self.targets_if_any(rows), self.labels)

    def score(self, predictions: ClassPredictions) -> dict[str, float]:
        return metrics.score(self.metrics, metrics.CLASSIFICATION, predictions.predicted, predictions.targets)

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        if not self.labels or examples.labels is None:
            return ""
        counts = np.bincount(self.targets(rows), minlength=len(self.labels))
        one_class = np.count_nonzero(counts) == 1
        text = "labels " + list_counts(self.labels, counts)
        return text + ("; warning: one class only, so scores say little" if one_class else "")


class TextRegression(TextTask):
    """Regression: one number for each example."""

    title = "regression"
    kind = "regression"
    problem_type = "regression"
    target_dtype = np.float32

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, model_config, path):
        task = cls(config, spec, None, tokenizer, model_config)
        return task, task.read(path)

    def parse_label(self, text: str) -> float:
        return parse_number(text)

    def known_metrics(self) -> tuple[Collection[str], str]:
        return metrics.REGRESSION, "a regression task"

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> NumberPredictions:
        return NumberPredictions(examples, outputs, self.targets_if_any(rows))

    def score(self, predictions: NumberPredictions) -> dict[str, float]:
        return metrics.score(self.metrics, metrics.REGRESSION, predictions.outputs[:, 0], predictions.targets)


def list_counts(labels: Sequence[str], counts: Sequence[int]) -> str:
    """Returns a list of the first labels with the number of examples of each, for a log line."""
    shown = [f"{name}: {count:,}" for name, count in zip(labels, counts, strict=True)]
    return ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "")


def _is_plain_text(path: str) -> bool:
    return compression.strip_suffix(str(path)).lower().endswith(".txt")


def parse_class_weights(text: str, labels: Sequence[str], targets: Sequence[int]) -> tuple[float, ...]:
    """Returns the weight of each label in the loss.

    Args:
        text: the value of `config.class_weights`. With "balanced", a label with n of the N examples has the
            weight N / (C n).
        labels: the C label names.
        targets: the label number of each of the N examples.

    Raises:
        UserError: a label does not exist, or a weight is not positive.
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
