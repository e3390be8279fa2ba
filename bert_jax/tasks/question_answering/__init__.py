"""Extractive question answering: SQuAD 1.1 and 2.0, and similar files (paper, sections 4.2 and 4.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.objectives.spans import Spans
from bert_jax.settings.config_fields import option
from bert_jax.tasks import registry
from bert_jax.tasks.base import DataConfig, FinetuneTask, WindowsConfig
from bert_jax.tasks.question_answering import decoding, encoding
from bert_jax.tasks.question_answering.decoding import AnswerPredictions, files_beside
from bert_jax.tasks.question_answering.question_files import NO_ANSWER, Questions, read_questions, text_of
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import SOURCE, LineReader


@dataclasses.dataclass(frozen=True)
class QuestionData(DataConfig):
    """The `config.data.*` fields of question answering."""

    text_b: str = option("", "Column of the second text.")


@dataclasses.dataclass(frozen=True)
class QuestionConfig(WindowsConfig):
    """The fields of question answering."""

    v2: bool = option(False, "Questions may be unanswerable (SQuAD 2.0).")
    max_query_length: int = option(
        64, "Maximum tokens of a question. Longer questions are truncated.", minimum=1, maximum=2**24
    )
    n_best: int = option(
        20, "Start and end candidates per window, and number of answers written.",
        minimum=1, maximum=10**6,
    )  # fmt: skip
    max_answer_length: int = option(30, "Maximum tokens of an answer.", minimum=1, maximum=2**24)
    null_score_diff_threshold: float = option(
        0.0,
        "Predict no answer if its score exceeds the best answer's by more than this (`v2`).",
        minimum=-(10**30), maximum=10**30,
    )  # fmt: skip
    data: QuestionData = QuestionData()


class QuestionLines(LineReader):
    """Reads questions with their contexts from a stream."""

    own_names = {"text_a": "question", "text_b": "context", "id": "id"}  # noqa: RUF012

    def value(self, row: Mapping[str, Any], field: str, key: str) -> str:
        return text_of(row, key)

    def collect(self, rows: Sequence[dict[str, Any]]) -> Questions:
        questions = Questions(SOURCE, rows=len(rows))
        for row in rows:
            questions.add(row["id"], row["text_a"], row["text_b"])
        return questions


class QuestionAnsweringTask(FinetuneTask):
    """Question answering: predicts a span of the context, or no answer (only with `config.v2`)."""

    Config = QuestionConfig
    config: QuestionConfig
    title = "questions (squad, squad2)"
    export_head = "question_answering"
    Lines = QuestionLines
    formats = (".json",)
    rules = (
        ("null_score_diff_threshold", lambda c: c.v2, "v2=true"),
        ("v2", lambda c: registry.spelled(c.task) == "squad", "the task squad"),
    )

    def set_up(self) -> None:
        c, special = self.config, self.tokenizer.template.special_count(pair=True)
        if c.max_seq_length <= c.max_query_length + special or c.doc_stride < 1:
            raise UserError(
                f"max_seq_length={c.max_seq_length}, doc_stride={c.doc_stride}: expected more than "
                f"{c.max_query_length + special} (max_query_length + {special}), and at least 1"
            )

    def read_training(self, path: str) -> Questions:
        return self._read(path, training=True)

    def objective(self) -> Spans:
        return Spans(self.model_config, self.tokenizer.layout.types, self.classifier)

    @property
    def known_metrics(self) -> tuple[str, ...]:
        return ("f1", "exact" if self.config.v2 else "exact_match")

    def read(self, path: str) -> Questions:
        return self._read(path)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> Questions:
        """Returns the questions of a file; test files have the same layout as the other splits."""
        return self._read(path, labeled=False, file_format="" if format == "auto" else format, **columns)

    def _read(self, path: str, file_format: str = "", **options: Any) -> Questions:
        data = self.config.data
        fields = {"question": "text_a", "context": "text_b", "answers": "label", "id": "id"}
        given = {name: options.pop(field, None) or getattr(data, field) for name, field in fields.items()}
        keys = {name: value for name, value in given.items() if value}
        return read_questions(
            path, keys=keys, file_format=file_format or data.format, v2=self.config.v2, **options
        )

    def encode(self, examples: Questions) -> encoding.WindowRows:
        c = self.config
        return encoding.encode(examples, self.tokenizer, c.max_seq_length, c.doc_stride, c.max_query_length)

    def decode(
        self, examples: Questions, rows: encoding.WindowRows, outputs: np.ndarray
    ) -> AnswerPredictions:
        return decoding.decode(examples, rows, outputs, self.config)

    def score(self, predictions: AnswerPredictions) -> dict[str, float]:
        expected, found = predictions.examples.answers, predictions
        if self.config.v2:
            return decoding.score_v2(expected, found.texts, found.non_null, found.null_odds)
        return decoding.score(expected, found.texts)

    def describe(self, examples: Questions, rows: encoding.WindowRows) -> str:
        parts = [
            f"{counted(len(examples.contexts), 'context')}, {counted(len(rows), 'window')}",
            f"{counted(rows.cut_questions, 'question')} truncated to {self.config.max_query_length}",
        ]
        if self.config.v2:
            parts.append(f"{examples.starts.count(NO_ANSWER):,} without an answer")
        return ", ".join(parts)

    def files_beside(self, path: str) -> Sequence[str]:
        return files_beside(path)[: 2 if self.config.v2 else 1]


_DEFAULTS = {"max_seq_length": 384, "doc_stride": 128}  # google-research/bert

# SQuAD (Rajpurkar et al. 2016, 2018) and other files with the same layout.
TASKS = (
    TaskSpec("squad", QuestionAnsweringTask, file_name="{split}-v1.1.json", defaults=_DEFAULTS),
    TaskSpec(
        "squad2",
        QuestionAnsweringTask,
        file_name="{split}-v2.0.json",
        defaults={**_DEFAULTS, "v2": True, "batch_size": 48, "epochs": 2.0},
    ),
)
