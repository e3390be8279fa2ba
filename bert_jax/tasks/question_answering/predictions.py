"""The predictions of question answering, and their files and reports."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.io import atomic, files
from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import DIGITS, Predictions
from bert_jax.tasks.question_answering import squad_scores
from bert_jax.tasks.question_answering.decoding import Answers
from bert_jax.tasks.question_answering.question_files import Questions


def files_beside(path: str) -> tuple[str, str]:
    """Returns the files of the n best answers and of null odds that are written with `path`.

    For a path that ends in predictions.json, they are nbest_predictions.json and null_odds.json; for
    NAME.json, nbest_NAME.json and null_odds_NAME.json.
    """
    name, folder = files.name(path), os.path.dirname(path)
    rest = name.removeprefix("predictions") if name.startswith("predictions") else f"_{name}"
    return os.path.join(folder, f"nbest_{name}"), os.path.join(folder, f"null_odds{rest}")


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

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of each predicted answer among the n best; 0 if it is not one of them."""
        found = (
            {one["text"]: one["probability"] for one in best}.get(text, 0.0)
            for best, text in zip(self.answers.n_best, self.answers.texts, strict=True)
        )
        return np.array([round(probability, DIGITS) for probability in found])

    @functools.cached_property
    def matches(self) -> np.ndarray:
        """The exact match and the F1 of each prediction: float64 [N, 2], from 0 to 1."""
        return squad_scores.matches(self.examples.answers, self.answers.texts, self.v2)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yields the answer of each question ("" for no answer) and its probability; in 2.0, null odds."""
        odds = [{"null_odds": round(one, DIGITS)} for one in self.answers.null_odds]
        odds = odds or [{}] * len(self.examples)
        columns = self.examples.ids, self.answers.texts, self.probabilities.tolist(), odds
        for id_, text, probability, of_null in zip(*columns, strict=True):
            yield {"id": id_, "prediction": text, "probability": probability, **of_null}

    def write(self, path: str) -> None:
        n_best, null_odds = files_beside(path)
        contents: dict[str, Sequence[Any]] = {path: self.answers.texts, n_best: self.answers.n_best}
        if self.v2:
            contents[null_odds] = self.answers.null_odds
        for file, values in contents.items():
            content = dict(zip(self.examples.ids, values, strict=True))
            atomic.write_text(file, json.dumps(content, indent=4) + "\n")

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return not scores.get("HasAns_f1", scores["f1"])

    def errors(self) -> Iterator[Sequence[Any]]:
        examples, confidence, matches = self.examples, self.probabilities, self.matches
        for i in error_analysis.surest_first(matches[:, 0] > 0, confidence):
            answers = " | ".join(dict.fromkeys(examples.answers[i]))
            shown = (f"{confidence[i]:.4f}", f"{100 * matches[i, 1]:.1f}")
            yield examples.ids[i], examples.questions[i], answers, self.answers.texts[i], *shown

    def plot(self, path: str) -> None:
        right = self.matches[:, 0] > 0
        error_analysis.plot_confidence(path, self.probabilities, right, "questions")
