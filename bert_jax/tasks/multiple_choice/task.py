"""Multiple-choice questions: SWAG, CODAH and the user's own files (paper, section 4.4)."""

from __future__ import annotations

import dataclasses
import itertools
import os
import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.tasks import error_analysis, metrics, writers
from bert_jax.tasks.config import option
from bert_jax.tasks.predictions import ERRORS_FILE, SCORES_FILE, ClassPredictions
from bert_jax.tasks.readers.file_rows import json_text
from bert_jax.tasks.readers.lines import LineReader, TableLines, find_key
from bert_jax.tasks.readers.report import Malformed
from bert_jax.tasks.readers.tables import PREDICT_FLAGS, Columns, Examples, check_header
from bert_jax.tasks.rows import assembly, windows
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.windows import Ids, Pair
from bert_jax.tasks.table_task import TableConfig, TableData, TableTask


@dataclasses.dataclass(frozen=True)
class ChoiceData(TableData):
    """The `config.data.*` fields of multiple choice."""

    choices: str = option("", "the columns of the choices, with commas between; or one of JSON lists")


@dataclasses.dataclass(frozen=True)
class ChoiceConfig(TableConfig):
    """The fields of multiple choice."""

    data: ChoiceData = ChoiceData()


class ChoicePredictions(ClassPredictions):
    """Predictions of multiple choice: the most probable choice; labels are the numbers of the choices."""

    def report(self, directory: str) -> None:
        self.write_errors(os.path.join(directory, ERRORS_FILE))
        error_analysis.plot_confidence(
            os.path.join(directory, SCORES_FILE), self.confidence, self.predicted == self.targets, "questions"
        )

    def write_errors(self, path: str) -> None:
        examples, confidence = self.examples, self.confidence
        right, predicted = self.targets, self.predicted
        writers.write_table(
            path,
            ["line", "label", "prediction", "confidence", "text", "right choice", "predicted choice"],
            (
                [
                    *(examples.lines[i], right[i], predicted[i], f"{confidence[i]:.4f}"),
                    " ".join([examples.texts_a[i], *([examples.texts_b[i]] if examples.texts_b else [])]),
                    *(examples.choices[i][right[i]], examples.choices[i][predicted[i]]),
                ]
                for i in error_analysis.surest_first(predicted == right, confidence)
            ),
        )


class MultipleChoiceTask(TableTask):
    """Selects the choice that best continues a text. The labels are the numbers of the choices, from 0."""

    Config = ChoiceConfig
    config: ChoiceConfig
    title = "multiple choice"
    export_head = "multiple_choice"

    def __init__(self, config, spec, labels, tokenizer, model_config):
        super().__init__(config, spec, labels, tokenizer, model_config)
        self._room = tokenizer.layout.room(config.max_seq_length, pair=True)
        windows.check_stride(config.doc_stride, config.max_seq_length, self._room, pairs=True)

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, model_config, path):
        task = cls(config, spec, None, tokenizer, model_config)
        examples = task.read(path)
        task.labels = tuple(map(str, range(len(examples.choices[0]))))
        return task, examples

    def objective(self) -> MultipleChoice:
        return MultipleChoice(
            self.model_config,
            len(self.labels),
            windows=self.has_windows,
            token_types=self.tokenizer.layout.types,
        )

    @property
    def rows_per_example(self) -> int:
        return len(self.labels)

    def known_metrics(self) -> tuple[Collection[str], str]:
        return ("accuracy",), "multiple choice"

    def read(self, path: str, labelled: bool = True, **options: Any) -> Examples:
        columns = self.columns
        if not columns.choices:
            raise UserError("which columns hold the choices? give --config.data.choices=COLUMN,COLUMN,...")
        if not labelled:
            return self._read_questions(path, columns, **options)
        if not columns.label:
            raise UserError("which column holds the right choice? give --config.data.label=COLUMN")
        return self._check_count(self.read_table(path, columns, _number))

    def _read_questions(
        self, path: str, known: Columns, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> Examples:
        del test  # test files have the same columns as the other splits
        check_header(path, format, columns)
        known = dataclasses.replace(known, **columns)
        return self._check_count(self.read_table(path, known, file_format=format, flags=PREDICT_FLAGS))

    def _check_count(self, examples: Examples) -> Examples:
        if self.labels and len(examples.choices[0]) != len(self.labels):
            raise UserError(
                f"{examples.path}: {len(examples.choices[0])} choices a question; the model was trained with "
                f"{len(self.labels)}"
            )
        return examples

    def encode(self, examples: Examples) -> EncodedRows:
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
            self.config.max_seq_length,
            rows_per_example=count,
            has_windows=self.has_windows,
        )

    def _rows(self, text: Ids, choices: Sequence[Ids]) -> tuple[list[Pair], bool]:
        if self.has_windows:
            return windows.split_question(text, choices, self._room, self.config.doc_stride)
        rows, cut = zip(*(assembly.truncate(text, choice, self._room) for choice in choices), strict=True)
        return [pair for pairs in rows for pair in pairs], any(cut)

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> ChoicePredictions:
        return ChoicePredictions(examples, outputs, self.targets_if_any(rows), self.labels)

    def score(self, predictions: ChoicePredictions) -> dict[str, float]:
        return {"accuracy": metrics.accuracy(predictions.predicted, predictions.targets)}

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        names = tuple(name.strip() for name in self.columns.choices.split(",") if name.strip())
        return ChoiceLines(file_format, self.line_names(columns), names, len(self.labels))


class ChoiceLines(TableLines):
    """Reads texts with choices from a stream.

    Args:
        file_format: as in `LineReader`.
        names: as in `LineReader`.
        choices: the columns of the choices, or the single column that holds JSON lists of them.
        count: the number of choices of a question.
    """

    def __init__(self, file_format: str, names: Mapping[str, str], choices: Sequence[str], count: int):
        super().__init__(file_format, names)
        self._choices, self._count = choices, count

    @property
    def columns(self) -> list[str]:
        return [*super().columns, f"{self._count} choices"]

    @property
    def width(self) -> int:
        return len(self.texts) + self._count

    def from_text(self, text: str) -> dict[str, Any]:
        return super().from_text(text) | {"choices": text.split("\t")[len(self.texts) :]}

    def from_object(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return super().from_object(row) | {"choices": self._choices_of(row)}

    def _choices_of(self, row: Mapping[str, Any]) -> list[str]:
        names = self._choices
        if len(names) > 1 and all(isinstance(row.get(name), str) for name in names):
            return [json_text(row[name], "choice", name) for name in names]
        key = find_key(row, ("choices",) if len(names) > 1 else (*names, "choices"))
        found = row[key]
        if not isinstance(found, list) or len(found) != self._count:
            raise Malformed(f"{key!r} is no list of {self._count} choices, as the model was trained with")
        return [json_text(choice, "choice", key) for choice in found]

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Examples:
        return dataclasses.replace(super().examples(rows), choices=[row["choices"] for _, row in rows])


def _number(text: str) -> int:
    """Parses the number of a choice, counted from 0, or its letter; A is 0."""
    text = text.strip()
    if len(text) == 1 and text.upper() in string.ascii_uppercase:
        return string.ascii_uppercase.index(text.upper())
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"label {text[:40]!r} is neither the number nor the letter of a choice") from None
