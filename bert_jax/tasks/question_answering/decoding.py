"""Decodes the start and end logits of tokens into answers.

The n best answers of each question are selected over all windows of its context, as in run_squad.py of
google-research/bert. The text of an answer is the context from the first character of its first token to the
last character of its last token, with each run of whitespace replaced by one space.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.io import atomic, files
from bert_jax.tasks.predictions import DIGITS, Predictions
from bert_jax.tasks.question_answering.encoding import WindowRows
from bert_jax.tasks.question_answering.question_files import BETWEEN_WORDS, Questions

_CHUNK = 512  # windows that are processed at a time

Logits = tuple[float, float]  # start and end logit of an answer


@dataclasses.dataclass
class AnswerPredictions(Predictions):
    """Predictions of question answering: an answer to each of N questions, in the order of the file.

    Attributes:
        examples: the questions.
        texts: [N], the predicted answer of each question; "" for no answer.
        n_best: [N] lists of the best answers, with the fields of nbest_predictions.json: text, probability,
            start_logit and end_logit.
        null_odds: [N], the score of no answer minus the score of the best answer; 0 if no span is a
            candidate. Empty if every question has an answer.
        non_null: [N], the best answer that is not empty; "" if no span is a candidate.
    """

    examples: Questions
    texts: list[str]
    n_best: list[list[dict[str, Any]]]
    null_odds: list[float]
    non_null: list[str]

    @functools.cached_property
    def probabilities(self) -> np.ndarray:
        """The probability of each predicted answer among the n best; 0 if it is not among them."""
        found = (
            {one["text"]: one["probability"] for one in best}.get(text, 0.0)
            for best, text in zip(self.n_best, self.texts, strict=True)
        )
        return np.array([round(probability, DIGITS) for probability in found])

    def records(self) -> Iterator[dict[str, Any]]:
        odds = [{"null_odds": round(one, DIGITS)} for one in self.null_odds]
        odds = odds or [{}] * len(self.examples)
        columns = self.examples.ids, self.texts, self.probabilities.tolist(), odds
        for id_, text, probability, of_null in zip(*columns, strict=True):
            yield {"id": id_, "prediction": text, "probability": probability, **of_null}

    def write(self, path: str) -> None:
        n_best, null_odds = files_beside(path)
        contents: dict[str, Sequence[Any]] = {path: self.texts, n_best: self.n_best}
        if self.null_odds:
            contents[null_odds] = self.null_odds
        for file, values in contents.items():
            content = dict(zip(self.examples.ids, values, strict=True))
            atomic.write_text(file, json.dumps(content, indent=4) + "\n")

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return not scores.get("HasAns_f1", scores["f1"])


def decode(questions: Questions, data: WindowRows, outputs: np.ndarray, config: Any) -> AnswerPredictions:
    """Returns the answers to all questions.

    The score of no answer is the minimum score of [CLS] over the windows. `outputs`, float32 [total, 2], are
    the start and end logits of every token of `data`, and `config` is a `QuestionConfig`.
    """
    n_best, v2 = config.n_best, config.v2
    spans_of = _candidates(data, outputs, n_best, config.max_answer_length)
    bounds = np.searchsorted(spans_of["example"], np.arange(len(questions) + 1)).tolist()
    columns = [spans_of[name].tolist() for name in ("begin", "end", "start_logit", "end_logit")]
    nulls = _null_logits(data, outputs, len(questions)).tolist() if v2 else []
    texts, listed, non_null, null_odds = [], [], [], []
    # Most contexts already have single spaces between words; their answers need no normalization.
    spaced = [BETWEEN_WORDS.sub(" ", context) == context for context in questions.contexts]
    for i, place in enumerate(questions.context_of):
        null = tuple(nulls[i]) if v2 else None
        spans = zip(*(column[bounds[i] : bounds[i + 1]] for column in columns), strict=True)
        chosen = _choose(questions.contexts[place], spaced[place], spans, null, n_best)
        text = next(filter(None, chosen), "")
        listed.append(_listed(chosen))
        non_null.append(text)
        if null is not None:
            null_odds.append(sum(null) - sum(chosen[text]))
            text = "" if null_odds[-1] > config.null_score_diff_threshold else text
        texts.append(text)
    return AnswerPredictions(questions, texts, listed, null_odds, non_null)


def _choose(
    context: str,
    spaced: bool,
    spans: Iterable[tuple[int, int, float, float]],
    null: Logits | None,
    n_best: int,
) -> dict[str, Logits]:
    chosen: dict[str, Logits] = {}
    for begin, end, start_logit, end_logit in spans:
        if null is not None and sum(null) > start_logit + end_logit:
            chosen.setdefault("", null)
        if len(chosen) >= n_best:
            break
        text = context[begin:end] if spaced else BETWEEN_WORDS.sub(" ", context[begin:end])
        if text:
            chosen.setdefault(text, (start_logit, end_logit))
    if null is not None:
        chosen.setdefault("", null)
    return chosen or {"empty": (0.0, 0.0)}


def _candidates(
    data: WindowRows, outputs: np.ndarray, n_best: int, max_answer_length: int
) -> dict[str, np.ndarray]:
    """Returns all valid pairs of likely starts and ends as arrays, sorted by example, best first."""
    parts = []
    for begin in range(0, len(data), _CHUNK):
        rows = np.arange(begin, min(begin + _CHUNK, len(data)))
        lengths = data.lengths[rows]
        place = np.arange(lengths.max())
        real = place < lengths[:, None]
        tokens = np.where(real, data.offsets[rows][:, None] + place, 0)
        chosen = []
        for column in range(2):
            logits = np.where(real, outputs[tokens, column], -np.inf)
            top = np.argsort(-logits, axis=1, kind="stable")[:, :n_best]
            chosen.append((np.take_along_axis(tokens, top, 1), np.take_along_axis(real, top, 1)))
        (first, first_real), (last, last_real) = chosen
        first_good = first_real & data.is_max_context[first]
        last_good = last_real & (data.characters[last, 0] >= 0)
        size = last[:, None, :] - first[:, :, None] + 1
        good = first_good[:, :, None] & last_good[:, None, :] & (size >= 1) & (size <= max_answer_length)
        row, i, j = np.nonzero(good)
        parts.append((data.examples[rows[row]], first[row, i], last[row, j]))
    example, first, last = (np.concatenate(column) for column in zip(*parts, strict=True))
    start, end = outputs[first, 0].astype(np.float64), outputs[last, 1].astype(np.float64)
    order = np.lexsort((-(start + end), example))
    return {
        "example": example[order],
        "begin": data.characters[first[order], 0],
        "end": data.characters[last[order], 1],
        "start_logit": start[order],
        "end_logit": end[order],
    }


def _null_logits(data: WindowRows, outputs: np.ndarray, count: int) -> np.ndarray:
    """Returns the start and end logit of [CLS] in the window with the lowest sum, float64 [count, 2]."""
    logits = outputs[data.offsets[:-1]].astype(np.float64)
    order = np.lexsort((logits.sum(axis=1), data.examples))
    return logits[order[np.searchsorted(data.examples[order], np.arange(count))]]


def _listed(chosen: dict[str, Logits]) -> list[dict[str, Any]]:
    scores = [sum(logits) for logits in chosen.values()]
    highest = max(scores)
    exponentials = [math.exp(score - highest) for score in scores]
    total = sum(exponentials)
    return [
        {"text": text, "probability": value / total, "start_logit": logits[0], "end_logit": logits[1]}
        for (text, logits), value in zip(chosen.items(), exponentials, strict=True)
    ]


def files_beside(path: str) -> tuple[str, str]:
    """Returns the files of n-best answers and null odds that are written next to `path`.

    For a path that ends in predictions.json, they are nbest_predictions.json and null_odds.json; for
    NAME.json, nbest_NAME.json and null_odds_NAME.json.
    """
    name, folder = files.name(path), os.path.dirname(path)
    rest = name.removeprefix("predictions") if name.startswith("predictions") else f"_{name}"
    return os.path.join(folder, f"nbest_{name}"), os.path.join(folder, f"null_odds{rest}")


# Exact match and F1 in percent, as defined by the official scripts of SQuAD


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """Converts a text to lower case and removes ASCII punctuation, English articles and extra spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _f1(answer: str, prediction: str, v2: bool) -> float:
    expected, given = answer.split(), prediction.split()
    if v2 and not (expected and given):
        return float(expected == given)
    same = sum((Counter(expected) & Counter(given)).values())
    return 2 * same / (len(expected) + len(given)) if same else 0.0


def best_match(answers: Sequence[str], prediction: str, v2: bool = False) -> tuple[float, float]:
    """Returns the exact match and F1 of a prediction, each the maximum over the answers, from 0 to 1.

    With `v2`, as in the script of SQuAD 2.0, answers that consist only of punctuation and articles are
    ignored, and two empty texts match ("" means no answer).
    """
    expected = [normalize_answer(answer) for answer in answers]
    if v2:
        expected = [answer for answer in expected if answer] or [""]
    given = normalize_answer(prediction)
    return float(given in expected), max(_f1(answer, given, v2) for answer in expected)


def matches(answers: Sequence[Sequence[str]], predictions: Sequence[str], v2: bool) -> np.ndarray:
    """Returns the exact match and F1 of each prediction as in `best_match`, float64 [N, 2]."""
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
    """Returns the metrics of SQuAD 2.0, in percent, with the names of the official script.

    A question without an answer has an empty list in `answers`; see `AnswerPredictions` for the others.

    Returns:
        `exact`, `f1` and `total`; the same for questions with an answer (`HasAns_`) and without an answer
        (`NoAns_`), if there are any; `best_exact` and `best_f1`, the scores with the best threshold for these
        questions; and `best_exact_thresh` and `best_f1_thresh`, these thresholds.
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

    A question is answered if its null odds do not exceed the threshold. The threshold is 0 if answering no
    question is best. `scores`, float [N], are the scores of the predictions, from 0 to 1, and `answerable`,
    bool [N], is whether each question has an answer.
    """
    given = np.array([bool(text) for text in predictions])
    # As the threshold rises, questions are answered one by one in the order of their null odds. An
    # unanswerable question is correct only as long as it is not answered.
    gains = np.where(answerable, scores, -1.0 * given)
    order = np.argsort(null_odds, kind="stable")
    totals = np.count_nonzero(~answerable) + np.concatenate([[0.0], np.cumsum(gains[order])])
    best = int(np.argmax(totals))
    return 100 * float(totals[best]) / len(scores), float(null_odds[order[best - 1]]) if best else 0.0
