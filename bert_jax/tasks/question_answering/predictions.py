"""The predictions of question answering, and their files and reports."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import DIGITS, Predictions
from bert_jax.tasks.question_answering import decoding, squad_scores
from bert_jax.tasks.question_answering.decoding import Answers
from bert_jax.tasks.question_answering.question_files import Questions


@dataclasses.dataclass
class AnswerPredictions(Predictions):
    """Predictions of question answering: an answer to each question.

    Attributes:
        examples: the questions.
        answers: the answers, in the order of the questions.
    """

    examples: Questions
    answers: Answers
    error_columns = ("id", "question", "answers", "prediction", "confidence", "f1")

    @property
    def v2(self) -> bool:
        """Returns whether a question may have no answer."""
        return bool(self.answers.null_odds)

    def probabilities(self) -> list[float]:
        """Returns the probability of each predicted answer among the n best; 0 if it is not one of them."""
        return [
            next((one["probability"] for one in n_best if one["text"] == text), 0.0)
            for n_best, text in zip(self.answers.n_best, self.answers.texts, strict=True)
        ]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the answer of each question ("" for no answer) and its probability among the n best.

        For SQuAD 2.0 there are also the null odds.
        """
        odds = [{"null_odds": round(one, DIGITS)} for one in self.answers.null_odds]
        found = zip(
            self.examples.ids,
            self.answers.texts,
            self.probabilities(),
            odds or [{}] * len(self.examples),
            strict=True,
        )
        for id_, text, probability, of_null in found:
            yield {"id": id_, "prediction": text, "probability": round(probability, DIGITS), **of_null}

    def write(self, path: str) -> None:
        """Writes the answers to `path`, and the n best answers and null odds beside it."""
        decoding.write(path, self.examples.ids, self.answers)

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the F1 of the questions that have an answer is 0."""
        return not scores.get("HasAns_f1", scores["f1"])

    def errors(self) -> Iterator[Sequence[Any]]:
        """Yields the questions whose answer is not an exact match."""
        examples, texts = self.examples, self.answers.texts
        confidence, matches = np.round(self.probabilities(), DIGITS), self.matches
        for i in error_analysis.surest_first(matches[:, 0] > 0, confidence):
            answers = " | ".join(dict.fromkeys(examples.answers[i]))
            shown = (f"{confidence[i]:.4f}", f"{100 * matches[i, 1]:.1f}")
            yield examples.ids[i], examples.questions[i], answers, texts[i], *shown

    @functools.cached_property
    def matches(self) -> np.ndarray:
        """The exact match and the F1 of each prediction: float64 [N, 2], from 0 to 1."""
        return squad_scores.matches(self.examples.answers, self.answers.texts, self.v2)

    def plot(self, path: str) -> None:
        """Plots the confidence of exact matches and of the other answers."""
        confidence = np.round(self.probabilities(), DIGITS)
        error_analysis.plot_confidence(path, confidence, self.matches[:, 0] > 0, "questions")
