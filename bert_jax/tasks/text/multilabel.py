"""Any number of labels a text, which do not exclude each other."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from typing import Any

import numpy as np

from bert_jax.errors import UserError, optional_imports
from bert_jax.io import atomic, files
from bert_jax.objectives.classification import Classification
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.readers.file_rows import LABEL_SEPARATOR
from bert_jax.tasks.readers.sources import read_examples
from bert_jax.tasks.readers.tables import Examples
from bert_jax.tasks.rows import batches
from bert_jax.tasks.text.task import TextProblem, columns_of

with optional_imports("metrics"):
    from sklearn import metrics as sklearn_metrics

_METRICS = ("f1_micro", "f1_macro", "exact_match")
_THRESHOLD = 0.5


class MultiLabelProblem(TextProblem):
    """A set of labels a row, from [CLS]; a label is given where its probability is over a half."""

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        examples = cls(config, spec, None, tokenizer, bert).read(path)
        counts = Counter(label for labels in examples.labels for label in labels)
        if not counts:
            raise UserError(f"{path}: none of the {len(examples)} rows has a label; check data.label")
        problem = cls(config, spec, tuple(sorted(counts)), tokenizer, bert)
        return problem, examples

    @property
    def task(self) -> Classification:
        return Classification(
            self.bert,
            len(self.labels),
            "multilabel",
            windows=bool(self._stride),
            token_types=self.tokenizer.layout.types,
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        names = metrics.parse(self.config.metrics, _METRICS, "several labels")
        metrics.check_packages(names)
        return names

    def read(self, path: str) -> Examples:
        columns = columns_of(self.config, self.spec)
        if not columns.label:
            raise UserError("which column holds the labels? give --config.data.label=COLUMN")
        data = self.config.data
        return read_examples(
            path,
            columns,
            file_format=data.format,
            quoting=data.quoting,
            parse_label=self._parse,
            label_may_be_empty=True,
        )

    def _parse(self, text: str) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(label.strip() for label in text.split(LABEL_SEPARATOR) if label.strip()))
        for label in found:
            if self.labels and label not in self.labels:
                shown = ", ".join(map(repr, self.labels[:10])) + (", ..." if len(self.labels) > 10 else "")
                raise ValueError(f"label {label!r} is none of {shown}")
        return found

    def encode(self, examples: Examples) -> batches.EncodedRows:
        data = super().encode(dataclasses.replace(examples, labels=None))
        if examples.labels is not None:
            numbers = {label: number for number, label in enumerate(self.labels)}
            targets = np.zeros((len(examples), len(self.labels)), np.float32)
            for row, labels in enumerate(examples.labels):
                targets[row, [numbers[label] for label in labels]] = 1
            data.targets["targets"] = targets[data.examples]
        return data

    def score(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, float]:
        given, right = outputs > _THRESHOLD, self.targets(data) > 0
        found = {
            "f1_micro": float(sklearn_metrics.f1_score(right, given, average="micro", zero_division=0.0)),
            "f1_macro": float(sklearn_metrics.f1_score(right, given, average="macro", zero_division=0.0)),
            "exact_match": float(np.mean(np.all(given == right, axis=1))),
        }
        return {name: found[name] for name in self.metrics}

    def write(self, path: str, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        """A row an example: its id, the labels given, with commas between, and the probability of each."""
        rows = self.records(examples, data, outputs)
        suffix = files.suffix(path)
        if suffix == ".jsonl":
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        else:
            quote, separator = (_quoted, ",") if suffix == ".csv" else (_one_line, "\t")
            table = [["id", "prediction", *(f"p({label})" for label in self.labels)]]
            table += [
                [row["id"], LABEL_SEPARATOR.join(row["prediction"]), *(f"{p:.6f}" for p in probabilities)]
                for row, probabilities in zip(rows, outputs, strict=True)
            ]
            lines = [separator.join(map(quote, fields)) for fields in table]
        atomic.write_text(path, "".join(line + "\n" for line in lines))

    def records(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> list[dict]:
        return [
            {
                "id": id_,
                "prediction": [label for label, p in zip(self.labels, row, strict=True) if p > _THRESHOLD],
                "probabilities": {
                    label: round(float(p), 6) for label, p in zip(self.labels, row, strict=True)
                },
            }
            for id_, row in zip(examples.ids, outputs, strict=True)
        ]

    def is_degenerate(self, scores: dict[str, float], outputs: np.ndarray) -> bool:
        """Whether every example gets the same labels."""
        return len(np.unique(outputs > _THRESHOLD, axis=0)) == 1

    def report(
        self, directory: Any, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray
    ) -> None:
        """Confidence is that in the label, given or not given, that is wrong most surely."""
        given, expected = outputs > _THRESHOLD, self.targets(data) > 0
        confidence = np.where(given == expected, 0, np.maximum(outputs, 1 - outputs)).max(axis=1)
        rows = self.records(examples, data, outputs)
        error_analysis.write_table(
            os.path.join(directory, "errors-dev.tsv"),
            ["line", "label", "prediction", "confidence", "text_a", "text_b"],
            (
                [
                    *(examples.lines[i], LABEL_SEPARATOR.join(examples.labels[i])),
                    *(LABEL_SEPARATOR.join(rows[i]["prediction"]), f"{confidence[i]:.4f}"),
                    *(examples.texts_a[i], examples.texts_b[i] if examples.texts_b else ""),
                ]
                for i in error_analysis.surest_first(confidence == 0, confidence)
            ),
        )
        scores = sklearn_metrics.f1_score(expected, given, average=None, zero_division=0.0)
        error_analysis.plot_by_label(os.path.join(directory, "scores-dev.png"), scores, self.labels, "F1")

    def describe(self, examples: Examples, data: batches.EncodedRows) -> str:
        if examples.labels is None:
            return ""
        counts = self.targets(data).sum(axis=0).astype(int)
        shown = [f"{name}: {count:,}" for name, count in zip(self.labels, counts, strict=True)]
        none = sum(not labels for labels in examples.labels)
        return "labels " + ", ".join(shown[:10]) + (", ..." if len(shown) > 10 else "") + f"; none: {none:,}"


def _one_line(field: str) -> str:
    return " ".join(field.split())


def _quoted(field: str) -> str:
    if any(character in field for character in ',"\n\r'):
        return '"' + field.replace('"', '""') + '"'
    return field
