"""Multiple-choice questions: SWAG, CODAH and the user's own files (paper, section 4.4)."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax.errors import UserError
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.settings.config_fields import option
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import TableConfig, TableData, TableTask
from bert_jax.tasks.lines import LineReader, TableLines
from bert_jax.tasks.predictions import ClassPredictions
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Examples, Malformed, find_key, json_text


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

    error_columns = (
        *ClassPredictions.error_columns[:4],
        *("text", "right choice", "predicted choice"),
    )

    def errors(self) -> Iterator[Sequence[Any]]:
        confidence = self.confidence
        for i in self.mistakes():
            right, predicted, choices = self.targets[i], self.predicted[i], self.examples.choices[i]
            shown = (right, predicted, f"{confidence[i]:.4f}", " ".join(filter(None, self.texts(i))))
            yield self.examples.lines[i], *shown, choices[right], choices[predicted]

    def confusions(self) -> None:
        """Returns None, because the number of a choice has no meaning of its own."""

    def plot(self, path: str) -> None:
        right = self.predicted == self.targets
        error_analysis.plot_confidence(path, self.confidence, right, "questions")


class MultipleChoiceTask(TableTask):
    """Selects the choice that best continues a text. The labels are the numbers of the choices, from 0."""

    Config = ChoiceConfig
    config: ChoiceConfig
    title = "multiple choice"
    export_head = "multiple_choice"
    Predictions = ChoicePredictions
    scorers = {"accuracy": metrics.accuracy}  # noqa: RUF012

    def set_up(self) -> None:
        super().set_up()
        if not self.columns.choices:
            raise UserError("which columns hold the choices? give --config.data.choices=COLUMN,COLUMN,...")

    def read_training(self, path: str) -> Examples:
        examples = self.read(path)
        self.labels = tuple(map(str, range(len(examples.choices[0]))))
        return examples

    def objective(self) -> MultipleChoice:
        return MultipleChoice(
            self.model_config,
            len(self.labels),
            windows=self.has_windows,
            token_types=self.tokenizer.layout.types,
            classifier=self.classifier,
        )

    def parse_label(self, text: str) -> int:
        """Returns the number of a choice, counted from 0, given as a number or as a letter; A is 0."""
        text = text.strip()
        if len(text) == 1 and text.upper() in string.ascii_uppercase:
            return string.ascii_uppercase.index(text.upper())
        try:
            return int(text)
        except ValueError:
            raise ValueError(
                f"label {text[:40]!r} is neither the number nor the letter of a choice"
            ) from None

    def encode(self, examples: Examples) -> EncodedRows:
        count = len(examples.choices[0])
        if count != len(self.labels):
            raise UserError(
                f"{examples.path}: {count} choices a question, expected {len(self.labels)} as trained"
            )
        starts = examples.texts_b or [""] * len(examples)
        endings = [
            [f"{start} {choice}".strip() for choice in choices]
            for start, choices in zip(starts, examples.choices, strict=True)
        ]
        c = self.config
        return assembly.encode_choices(
            examples.texts_a, endings, examples.labels, self.tokenizer, c.max_seq_length, c.doc_stride
        )

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        names = self.columns.names("choices")
        return ChoiceLines(file_format, self.line_names() | columns, names, len(self.labels))


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
            raise Malformed(f"{key!r} is not a list of {self._count} choices, as the model was trained with")
        return [json_text(choice, "choice", key) for choice in found]

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Examples:
        return dataclasses.replace(super().examples(rows), choices=[row["choices"] for _, row in rows])
