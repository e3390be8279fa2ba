"""Exact match and F1 as SQuAD's official scripts define them, in percent."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(answer: str, prediction: str, v2: bool) -> float:
    expected, given = answer.split(), prediction.split()
    if v2 and not (expected and given):
        return float(expected == given)
    same = sum((Counter(expected) & Counter(given)).values())
    return 2 * same / (len(expected) + len(given)) if same else 0.0


def best_match(answers: Sequence[str], prediction: str, v2: bool = False) -> tuple[float, float]:
    """Exact match and F1, each the best over the answers, from 0 to 1.

    Args:
        answers: of one question; none where it has no answer.
        prediction: "" for no answer.
        v2: as the script of SQuAD 2.0 has it: answers of nothing but punctuation and articles don't count,
            and two empty texts agree.
    """
    expected = [normalize_answer(answer) for answer in answers]
    if v2:
        expected = [answer for answer in expected if answer] or [""]
    given = normalize_answer(prediction)
    return float(given in expected), max(_f1(answer, given, v2) for answer in expected)


def score(answers: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """f1 and exact_match of SQuAD 1.1, in percent; [N] questions with their answers, [N] predictions."""
    exact, f1 = _matches(answers, predictions, v2=False)
    return {"f1": 100 * float(np.mean(f1)), "exact_match": 100 * float(np.mean(exact))}


def score_v2(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    non_null: Sequence[str],
    null_odds: Sequence[float],
) -> dict[str, float]:
    """The figures of SQuAD 2.0, in percent, under the names of its script.

    Args:
        answers: [N] lists, empty for a question without an answer.
        predictions: [N], "" for no answer.
        non_null, null_odds: [N], the best answer and how much likelier none is: what a threshold decides on.

    Returns:
        exact, f1, total, the same of the questions with an answer (HasAns_) and without (NoAns_), where there
        are any, and, apart from them, best_exact and best_f1: what the threshold that is best on these very
        questions (best_exact_thresh, best_f1_thresh) would give.
    """
    exact, f1 = _matches(answers, predictions, v2=True)
    answerable = np.array([bool(texts) for texts in answers])
    scores: dict[str, float] = {}
    groups = {"": np.ones(len(answers), bool), "HasAns_": answerable, "NoAns_": ~answerable}
    for prefix, group in groups.items():
        if group.any():
            scores[f"{prefix}exact"] = 100 * float(np.mean(exact[group]))
            scores[f"{prefix}f1"] = 100 * float(np.mean(f1[group]))
            scores[f"{prefix}total"] = int(group.sum())
    for name, values in zip(("exact", "f1"), _matches(answers, non_null, v2=True), strict=True):
        best, threshold = best_threshold(values, answerable, non_null, null_odds)
        scores[f"best_{name}"], scores[f"best_{name}_thresh"] = best, threshold
    return scores


def best_threshold(
    matches: np.ndarray, answerable: np.ndarray, predictions: Sequence[str], null_odds: Sequence[float]
) -> tuple[float, float]:
    """The best mean, in percent, and the odds up to which an answer is given for it; 0 when none should be.

    Args:
        matches: float [N], of each prediction.
        answerable: bool [N].
        predictions, null_odds: [N].
    """
    given = np.array([bool(text) for text in predictions])
    # Questions are answered one by one, the surest first; one without an answer is lost when it is.
    gains = np.where(answerable, matches, -1.0 * given)
    order = np.argsort(null_odds, kind="stable")
    totals = np.count_nonzero(~answerable) + np.concatenate([[0.0], np.cumsum(gains[order])])
    best = int(np.argmax(totals))
    return 100 * float(totals[best]) / len(matches), float(null_odds[order[best - 1]]) if best else 0.0


def _matches(answers, predictions, v2):
    pairs = [best_match(texts, text, v2) for texts, text in zip(answers, predictions, strict=True)]
    return np.array(pairs).reshape(-1, 2).T
