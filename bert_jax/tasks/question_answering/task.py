"""Answers to questions as stretches of a text (paper, sections 4.2 and 4.3): SQuAD 1.1 and 2.0, and files
like them.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.objectives.spans import Spans
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import Problem
from bert_jax.tasks.question_answering import decoding, encoding, squad_scores
from bert_jax.tasks.question_answering.question_files import NO_ANSWER, Keys, Questions, read_questions

_HINT = "--config=finetune/squad has the defaults of questions"


class QuestionAnswering(Problem):
    """A stretch of the context a question, or, under `config.v2`, none."""

    formats = (".json",)

    def __init__(self, config, spec, labels, tokenizer, bert):
        super().__init__(config, spec, labels, tokenizer, bert)
        special = tokenizer.template.special_count(pair=True)
        if config.max_length <= config.max_query_length + special:
            raise UserError(
                f"max_length={config.max_length}: expected more than max_query_length + {special} = "
                f"{config.max_query_length + special}, so that a window of the context has room beside the "
                f"question; {_HINT}"
            )
        for name in ("max_query_length", "doc_stride", "n_best", "max_answer_length"):
            if config[name] < 1:
                raise UserError(f"{name}={config[name]}: expected 1 or more; {_HINT}")

    @classmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path):
        problem = cls(config, spec, None, tokenizer, bert)
        return problem, problem._read(path, training=True)

    @property
    def task(self) -> Spans:
        return Spans(self.bert, self.tokenizer.layout.types)

    @property
    def metrics(self) -> tuple[str, ...]:
        known = ("f1", "exact") if self.config.v2 else ("f1", "exact_match")
        return metrics.parse(self.config.metrics, known, "these questions")

    def read(self, path: str) -> Questions:
        return self._read(path)

    def read_unlabelled(self, path: str, *, test: bool = False, format: str = "auto", **keys) -> Questions:
        """`keys`: those of a JSON-lines file that differ from the training file's."""
        del test
        for name in keys:
            if name not in ("text_a", "text_b", "id"):
                raise UserError(f"--{name} is for tables; questions are read from JSON")
        return self._read(path, labelled=False, file_format=format, **keys)

    def _read(self, path, file_format="", **options):
        data = self.config.data
        fields = {"question": "text_a", "context": "text_b", "answers": "label", "id": "id"}
        given = {name: options.pop(field, None) or data[field] for name, field in fields.items()}
        given["answer_start"] = data.answer_start
        keys = Keys(**{name: value for name, value in given.items() if value})
        return read_questions(
            path, keys=keys, file_format=file_format or data.format, v2=self.config.v2, **options
        )

    def encode(self, examples: Questions) -> encoding.WindowRows:
        c = self.config
        return encoding.encode(examples, self.tokenizer, c.max_length, c.doc_stride, c.max_query_length)

    def decode(self, examples: Questions, data: encoding.WindowRows, outputs: np.ndarray) -> decoding.Answers:
        """The answers by the run's configuration."""
        names = ("n_best", "max_answer_length", "v2", "null_score_diff_threshold")
        return decoding.decode(examples, data, outputs, **{name: self.config[name] for name in names})

    def loss(self, data: encoding.WindowRows, outputs: np.ndarray) -> float:
        return self.task.evaluation_loss(encoding.padded(data, outputs), data.targets)

    def score(self, examples, data, outputs) -> dict[str, float]:
        found = self.decode(examples, data, outputs)
        if self.config.v2:
            return squad_scores.score_v2(examples.answers, found.texts, found.non_null, found.null_odds)
        return squad_scores.score(examples.answers, found.texts)

    def write(self, path, examples, data, outputs) -> None:
        decoding.write(path, examples.ids, self.decode(examples, data, outputs))

    def records(self, examples, data, outputs) -> list[dict[str, Any]]:
        """The answer, "" for none, its probability among the `n_best`, and under `v2` its null odds."""
        found = self.decode(examples, data, outputs)
        rows = []
        for i, (id_, text) in enumerate(zip(examples.ids, found.texts, strict=True)):
            probability = next((one["probability"] for one in found.n_best[i] if one["text"] == text), 0.0)
            rows.append({"id": id_, "prediction": text, "probability": round(probability, 6)})
            if found.null_odds is not None:
                rows[-1]["null_odds"] = round(found.null_odds[i], 6)
        return rows

    def is_degenerate(self, scores: dict[str, float], outputs: np.ndarray) -> bool:
        """Whether no question that has an answer gets any of it, however many have none."""
        return not scores.get("HasAns_f1", scores[self.metrics[0]])

    def report(
        self, directory: Any, examples: Questions, data: encoding.WindowRows, outputs: np.ndarray
    ) -> None:
        """Right is what matches an answer exactly; errors-dev.tsv has the F1 of what does not."""
        rows = self.records(examples, data, outputs)
        confidence = np.array([row["probability"] for row in rows])
        matches = [
            squad_scores.best_match(answers, row["prediction"], self.config.v2)
            for answers, row in zip(examples.answers, rows, strict=True)
        ]
        right = np.array([exact > 0 for exact, _ in matches])
        error_analysis.write_table(
            os.path.join(directory, "errors-dev.tsv"),
            ["id", "question", "answers", "prediction", "confidence", "f1"],
            (
                [
                    *(examples.ids[i], examples.questions[i], " | ".join(dict.fromkeys(examples.answers[i]))),
                    *(rows[i]["prediction"], f"{confidence[i]:.4f}", f"{100 * matches[i][1]:.1f}"),
                ]
                for i in error_analysis.surest_first(right, confidence)
            ),
        )
        error_analysis.plot_confidence(
            os.path.join(directory, "scores-dev.png"), confidence, right, "questions"
        )

    def describe(self, examples: Questions, data: encoding.WindowRows) -> str:
        parts = [
            f"{len(examples.contexts):,} contexts, {len(data):,} windows",
            f"{data.cut_questions:,} questions cut at {self.config.max_query_length}",
        ]
        if self.config.v2:
            parts.append(f"{examples.starts.count(NO_ANSWER):,} without an answer")
        return ", ".join(parts)
