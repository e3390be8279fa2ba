"""Extractive question answering: SQuAD 1.1 and 2.0, and similar files (paper, sections 4.2 and 4.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.objectives.spans import Spans
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.config import DataConfig, TaskConfig, option
from bert_jax.tasks.question_answering import decoding, encoding, question_files, squad_scores
from bert_jax.tasks.question_answering.predictions import AnswerPredictions
from bert_jax.tasks.question_answering.question_files import (
    NO_ANSWER,
    UNKNOWN,
    Keys,
    Questions,
    read_questions,
)
from bert_jax.tasks.readers.lines import FIELDS, SOURCE, LineReader, ids_of
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.spec import TaskSpec

_HINT = "--config=finetune/squad has the defaults of questions"


@dataclasses.dataclass(frozen=True)
class QuestionData(DataConfig):
    """The `config.data.*` fields of question answering."""

    text_b: str = option("", "the column of the second text of a pair")
    answer_start: str = option("", "of JSON-lines files: the place of an answer that is one string")


@dataclasses.dataclass(frozen=True)
class QuestionConfig(TaskConfig):
    """The fields of question answering."""

    doc_stride: int = option(
        0, "tokens from one window of a longer text, of a question its context, to the next; 0: it is cut",
        maximum=2**24,
    )  # fmt: skip
    v2: bool = option(False, "questions may have no answer")
    max_query_length: int = option(64, "tokens of a question; longer ones are cut", minimum=1, maximum=2**24)
    n_best: int = option(
        20, "starts and ends that are combined in each window, and answers that are listed",
        minimum=1, maximum=10**6,
    )  # fmt: skip
    max_answer_length: int = option(30, "tokens", minimum=1, maximum=2**24)
    null_score_diff_threshold: float = option(
        0.0, "no answer is predicted where its score is above the best answer's by more; only with `v2`",
        minimum=-(10**30), maximum=10**30,
    )  # fmt: skip
    data: QuestionData = QuestionData()


class QuestionAnsweringTask(FinetuneTask):
    """Question answering: predicts a span of the context, or, with `config.v2`, that there is no answer."""

    Config = QuestionConfig
    config: QuestionConfig
    title = "questions (squad, squad2)"
    formats = (".json",)

    def __init__(self, config, spec, labels, tokenizer, model_config):
        super().__init__(config, spec, labels, tokenizer, model_config)
        special = tokenizer.template.special_count(pair=True)
        if config.max_seq_length <= config.max_query_length + special:
            raise UserError(
                f"max_seq_length={config.max_seq_length}: expected more than max_query_length + {special} = "
                f"{config.max_query_length + special}, so that a window of the context has room beside the "
                f"question; {_HINT}"
            )
        if config.doc_stride < 1:
            raise UserError(f"doc_stride={config.doc_stride}: expected 1 or more; {_HINT}")

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, model_config, path):
        task = cls(config, spec, None, tokenizer, model_config)
        return task, task._read(path, training=True)

    def objective(self) -> Spans:
        return Spans(self.model_config, self.tokenizer.layout.types)

    def known_metrics(self) -> tuple[Collection[str], str]:
        return ("f1", "exact" if self.config.v2 else "exact_match"), "these questions"

    def read(self, path: str, labelled: bool = True, **options: Any) -> Questions:
        return self._read(path) if labelled else self._read_unlabelled(path, **options)

    def _read_unlabelled(
        self, path: str, *, test: bool = False, format: str = "auto", **keys: str
    ) -> Questions:
        del test  # test files have the same layout as the other splits
        for name in keys:
            if name not in FIELDS:
                raise UserError(f"--{name} is for tables; questions are read from JSON")
        return self._read(path, labelled=False, file_format=format, **keys)

    def _read(self, path: str, file_format: str = "", **options: Any) -> Questions:
        data = self.config.data
        fields = {"question": "text_a", "context": "text_b", "answers": "label", "id": "id"}
        given = {name: options.pop(field, None) or getattr(data, field) for name, field in fields.items()}
        given["answer_start"] = data.answer_start
        keys = Keys(**{name: value for name, value in given.items() if value})
        return read_questions(
            path, keys=keys, file_format=file_format or data.format, v2=self.config.v2, **options
        )

    def encode(self, examples: Questions) -> encoding.WindowRows:
        c = self.config
        return encoding.encode(examples, self.tokenizer, c.max_seq_length, c.doc_stride, c.max_query_length)

    def targets(self, rows: EncodedRows) -> Mapping[str, np.ndarray]:
        return rows.targets

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> float:
        """Returns the mean loss over the windows whose answer is known."""
        return super().loss(rows, encoding.padded(rows, outputs))

    def decode(
        self, examples: Questions, rows: encoding.WindowRows, outputs: np.ndarray
    ) -> AnswerPredictions:
        c = self.config
        answers = decoding.decode(
            examples,
            rows,
            outputs,
            n_best=c.n_best,
            max_answer_length=c.max_answer_length,
            v2=c.v2,
            null_score_diff_threshold=c.null_score_diff_threshold,
        )
        return AnswerPredictions(examples, answers)

    def score(self, predictions: AnswerPredictions) -> dict[str, float]:
        expected, found = predictions.examples.answers, predictions.answers
        if predictions.v2:
            return squad_scores.score_v2(expected, found.texts, found.non_null, found.null_odds)
        return squad_scores.score(expected, found.texts)

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        data, own = self.config.data, QuestionLines.own_names
        names = {field: getattr(data, field) or own[field] for field in FIELDS}
        return QuestionLines(file_format, names | columns)

    def describe(self, examples: Questions, rows: encoding.WindowRows) -> str:
        parts = [
            f"{len(examples.contexts):,} contexts, {len(rows):,} windows",
            f"{rows.cut_questions:,} questions cut at {self.config.max_query_length}",
        ]
        if self.config.v2:
            parts.append(f"{examples.starts.count(NO_ANSWER):,} without an answer")
        return ", ".join(parts)

    def set_null_threshold(self, threshold: float) -> None:
        if not self.config.v2:
            super().set_null_threshold(threshold)
        self.config = dataclasses.replace(self.config, null_score_diff_threshold=threshold)

    @classmethod
    def detect_format(cls, path: str, file_format: str) -> str:
        return question_files.detect_format(path, file_format)

    @classmethod
    def check_values(cls, config: Any, spec: TaskSpec) -> None:
        if spec.name == "squad2" and not config.v2:
            raise UserError(
                "v2=False: questions of the task squad2 may have no answer; set --config.v2=true, as "
                "--config=finetune/squad:v2 does, or --config.task=squad"
            )

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec, formats: set[str]) -> Iterator[tuple[str, str]]:
        if not config.v2:
            yield "null_score_diff_threshold", "every question has an answer unless v2=true"
        if formats == {"json"}:
            for name in ("text_a", "text_b", "label", "id", "answer_start"):
                yield f"data.{name}", "it is of JSON-lines, and SQuAD's layout has names of its own"


class QuestionLines(LineReader):
    """Reads questions with their contexts from a stream."""

    own_names = {"text_a": "question", "text_b": "context", "id": "id"}  # noqa: RUF012
    needs_text = True

    def examples(self, rows: Sequence[tuple[int, dict[str, Any]]]) -> Questions:
        asked, texts = ([row[field] for _, row in rows] for field in ("text_a", "text_b"))
        contexts = {context: place for place, context in enumerate(dict.fromkeys(texts))}
        return Questions(
            SOURCE,
            ids_of(rows),
            asked,
            list(contexts),
            [contexts[context] for context in texts],
            [[] for _ in rows],
            [UNKNOWN] * len(rows),
            rows=len(rows),
        )
