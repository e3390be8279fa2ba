"""Exact match and F1 in percent, as defined by the official scripts of SQuAD."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Returns a text in lower case, without ASCII punctuation and English articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(answer: str, prediction: str, v2: bool) -> float:
    expected, given = answer.split(), prediction.split()
    if v2 and not (expected and given):
        return float(expected == given)
    same = sum((Counter(expected) & Counter(given)).values())
    return 2 * same / (len(expected) + len(given)) if same else 0.0


def best_match(answers: Sequence[str], prediction: str, v2: bool = False) -> tuple[float, float]:
    """Returns the exact match and the F1 of a prediction, each the maximum over the answers, from 0 to 1.

    With `v2`, as the script of SQuAD 2.0 scores, answers that consist only of punctuation and articles are
    ignored, and two empty texts agree: "" is no answer.
    """
    expected = [normalize_answer(answer) for answer in answers]
    if v2:
        expected = [answer for answer in expected if answer] or [""]
    given = normalize_answer(prediction)
    return float(given in expected), max(_f1(answer, given, v2) for answer in expected)


def matches(answers: Sequence[Sequence[str]], predictions: Sequence[str], v2: bool) -> np.ndarray:
    """Returns the exact match and the F1 of each prediction, as in `best_match`: float64 [N, 2]."""
    pairs = [best_match(texts, text, v2) for texts, text in zip(answers, predictions, strict=True)]
    return np.array(pairs).reshape(-1, 2)


def score(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns `f1` and `exact_match` of SQuAD 1.1, in percent, for N questions."""
    exact, f1 = matches(answers, predictions, v2=False).T
    return {"f1": 100 * float(np.mean(f1)), "exact_match": 100 * float(np.mean(exact))}


def score_v2(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    non_null: Sequence[str],
    null_odds: Sequence[float],
) -> dict[str, float]:
    """Returns the metrics of SQuAD 2.0, in percent, by the names that its script uses.

    `answers` is empty for a question without an answer; the others are as in `decoding.AnswerPredictions`.

    Returns:
        `exact`, `f1` and `total`; the same for the questions with an answer (`HasAns_`) and without one
        (`NoAns_`), if there are any; `best_exact` and `best_f1`, the scores with the threshold that is best
        for these questions, and `best_exact_thresh` and `best_f1_thresh`, these thresholds.
    """
    exact, f1 = matches(answers, predictions, v2=True).T
    answerable = np.array([bool(texts) for texts in answers])
    scores: dict[str, float] = {}
    groups = {"": np.ones(len(answers), bool), "HasAns_": answerable, "NoAns_": ~answerable}
    for prefix, group in groups.items():
        if group.any():
            scores[f"{prefix}exact"] = 100 * float(np.mean(exact[group]))
            scores[f"{prefix}f1"] = 100 * float(np.mean(f1[group]))
            scores[f"{prefix}total"] = int(group.sum())
    for name, values in zip(("exact", "f1"), matches(answers, non_null, v2=True).T, strict=True):
        best, threshold = best_threshold(values, answerable, non_null, null_odds)
        scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best, threshold
    return scores


def best_threshold(
    scores: np.ndarray, answerable: np.ndarray, predictions: Sequence[str], null_odds: Sequence[float]
) -> tuple[float, float]:
    """Returns the best mean score over all thresholds, in percent, and the threshold that achieves it.

    A question is answered if its null odds do not exceed the threshold. The threshold is 0 if it is best to
    answer no question. `scores`, float [N], are those of the predictions, from 0 to 1, and `answerable`, bool
    [N], is whether each question has an answer.
    """
    given = np.array([bool(text) for text in predictions])
    # Raising the threshold answers one question after the other, in the order of their null odds. An
    # unanswerable question counts as correct only as long as it is not answered.
    gains = np.where(answerable, scores, -1.0 * given)
    order = np.argsort(null_odds, kind="stable")
    totals = np.count_nonzero(~answerable) + np.concatenate([[0.0], np.cumsum(gains[order])])
    best = int(np.argmax(totals))
    return 100 * float(totals[best]) / len(scores), float(null_odds[order[best - 1]]) if best else 0.0
