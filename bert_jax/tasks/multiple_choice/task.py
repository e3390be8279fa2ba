"""Multiple choice: SWAG, CODAH and the user's own questions (paper, section 4.4)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import string
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import Problem
from bert_jax.tasks.readers.file_rows import TRAINING_FLAGS
from bert_jax.tasks.readers.sources import read_examples
from bert_jax.tasks.readers.tables import PREDICT_FLAGS, Examples, check_header
from bert_jax.tasks.rows import assembly, batches, predictions, windows
from bert_jax.tasks.text.task import columns_of


class MultipleChoiceProblem(Problem):
    """Which of some endings follows a text. The labels are the choices' numbers from 0.

    With `config.doc_stride`, a text too long for a row has windows, each a question with the same answer;
    scored and written is the mean of their probabilities.
    """

    exported_as = "multiple_choice"

    def __init__(self, config, spec, labels, tokenizer, bert):
        super().__init__(config, spec, labels, tokenizer, bert)
        self._stride = config.doc_stride
        self._room = tokenizer.layout.room(config.max_length, pair=True)
        windows.check_stride(self._stride, config.max_length, self._room, pairs=True)

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        problem = cls(config, spec, None, tokenizer, bert)
        examples = problem.read(path)
        problem.labels = tuple(map(str, range(len(examples.choices[0]))))
        return problem, examples

    @property
    def task(self) -> MultipleChoice:
        return MultipleChoice(
            self.bert,
            len(self.labels),
            windows=bool(self._stride),
            token_types=self.tokenizer.layout.types,
        )

    @property
    def group(self) -> int:
        return len(self.labels)

    @property
    def metrics(self) -> tuple[str, ...]:
        return metrics.parse(self.config.metrics, ("accuracy",), "multiple choice")

    def read(self, path: str) -> Examples:
        columns = self._columns()
        if not columns.label:
            raise UserError("which column holds the right choice? give --config.data.label=COLUMN")
        return self._read(path, columns, self.config.data.format, parse_label=_number)

    def read_unlabelled(self, path: str, *, test: bool = False, format: str = "auto", **columns) -> Examples:
        """`columns`: those that differ from the training file's."""
        del test
        check_header(path, format, columns)
        return self._read(path, dataclasses.replace(self._columns(), **columns), format, None, PREDICT_FLAGS)

    def encode(self, examples: Examples) -> batches.EncodedRows:
        count = len(examples.choices[0])
        starts = examples.texts_b or [""] * len(examples)
        endings = [
            f"{start} {choice}".strip()
            for start, choices in zip(starts, examples.choices, strict=True)
            for choice in choices
        ]
        ids = assembly.tokenize(self.tokenizer, endings)
        rows = (
            self._rows(text, list(itertools.islice(ids, count)))
            for text in assembly.tokenize(self.tokenizer, examples.texts_a)
        )
        return assembly.assemble(
            rows,
            examples.labels,
            self.tokenizer,
            self.config.max_length,
            rows_per_example=count,
            has_windows=bool(self._stride),
        )

    def _rows(self, text, choices):
        if self._stride:
            return windows.split_question(text, choices, self._room, self._stride)
        rows, cut = zip(*(assembly.truncate(text, choice, self._room) for choice in choices), strict=True)
        return [pair for pairs in rows for pair in pairs], any(cut)

    def loss(self, data: batches.EncodedRows, outputs: np.ndarray) -> float:
        return self.task.evaluation_loss(outputs, self._targets(data))

    def score(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(np.argmax(outputs, axis=-1), self._targets(data))}

    def write(self, path: str, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        predictions.write_predictions(path, examples.ids, outputs, self.labels)

    def records(self, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray) -> list[dict]:
        return predictions.records(examples.ids, outputs, self.labels)

    def is_degenerate(self, scores: dict[str, float], outputs: np.ndarray) -> bool:
        """Whether the choice of the same number is taken everywhere."""
        return len(np.unique(np.argmax(outputs, axis=-1))) == 1

    def report(
        self, directory: Any, examples: Examples, data: batches.EncodedRows, outputs: np.ndarray
    ) -> None:
        targets, predicted, confidence = self._targets(data), outputs.argmax(axis=-1), outputs.max(axis=-1)
        right = predicted == targets
        error_analysis.write_table(
            os.path.join(directory, "errors-dev.tsv"),
            ["line", "label", "prediction", "confidence", "text", "right choice", "predicted choice"],
            (
                [
                    *(examples.lines[i], targets[i], predicted[i], f"{confidence[i]:.4f}"),
                    " ".join([examples.texts_a[i], *([examples.texts_b[i]] if examples.texts_b else [])]),
                    *(examples.choices[i][targets[i]], examples.choices[i][predicted[i]]),
                ]
                for i in error_analysis.surest_first(right, confidence)
            ),
        )
        error_analysis.plot_confidence(
            os.path.join(directory, "scores-dev.png"), confidence, right, "questions"
        )

    def _targets(self, data: batches.EncodedRows) -> np.ndarray:
        """Of each question: int32 [questions]."""
        return data.targets["targets"][:: data.rows_per_example][windows.first_rows(data.group_examples)]

    def _columns(self):
        columns = columns_of(self.config, self.spec)
        if not columns.choices:
            raise UserError("which columns hold the choices? give --config.data.choices=COLUMN,COLUMN,...")
        return columns

    def _read(
        self, path: str, columns, file_format: str, parse_label, flags: str = TRAINING_FLAGS
    ) -> Examples:
        examples = read_examples(
            path,
            columns,
            file_format=file_format,
            quoting=self.config.data.quoting,
            parse_label=parse_label,
            flags=flags,
        )
        if self.labels and len(examples.choices[0]) != len(self.labels):
            raise UserError(
                f"{path}: {len(examples.choices[0])} choices a question; the model was trained with "
                f"{len(self.labels)}"
            )
        return examples


def _number(text: str) -> int:
    """Of a choice, from 0; A is 0."""
    text = text.strip()
    if len(text) == 1 and text.upper() in string.ascii_uppercase:
        return string.ascii_uppercase.index(text.upper())
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"label {text[:40]!r} is neither the number nor the letter of a choice") from None
