"""The predictions of question answering, and their files and reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.tasks import error_analysis, writers
from bert_jax.tasks.predictions import ERRORS_FILE, SCORES_FILE, Predictions
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

    def records(self) -> list[dict[str, Any]]:
        """Returns the answer of each question ("" for no answer) and its probability among the n best.

        For SQuAD 2.0 there are also the null odds.
        """
        rows = [
            {"id": id_, "prediction": text, "probability": round(probability, 6)}
            for id_, text, probability in zip(
                self.examples.ids, self.answers.texts, self.probabilities(), strict=True
            )
        ]
        if self.v2:
            for row, odds in zip(rows, self.answers.null_odds, strict=True):
                row["null_odds"] = round(odds, 6)
        return rows

    def write(self, path: str) -> None:
        decoding.write(path, self.examples.ids, self.answers)

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether the F1 of the questions that have an answer is 0."""
        return not scores.get("HasAns_f1", scores["f1"])

    def report(self, directory: str) -> None:
        """Writes the reports. Only exact matches count as correct; errors-dev.tsv has the F1 of the rest."""
        examples, texts = self.examples, self.answers.texts
        confidence = np.round(self.probabilities(), 6)
        matches = [
            squad_scores.best_match(answers, text, self.v2)
            for answers, text in zip(examples.answers, texts, strict=True)
        ]
        right = np.array([exact > 0 for exact, _ in matches])
        writers.write_table(
            os.path.join(directory, ERRORS_FILE),
            ["id", "question", "answers", "prediction", "confidence", "f1"],
            (
                [
                    *(examples.ids[i], examples.questions[i], " | ".join(dict.fromkeys(examples.answers[i]))),
                    *(texts[i], f"{confidence[i]:.4f}", f"{100 * matches[i][1]:.1f}"),
                ]
                for i in error_analysis.surest_first(right, confidence)
            ),
        )
        error_analysis.plot_confidence(os.path.join(directory, SCORES_FILE), confidence, right, "questions")
