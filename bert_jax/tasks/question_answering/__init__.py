"""Extractive question answering: SQuAD 1.1 and 2.0, and similar files (paper, sections 4.2 and 4.3).

Rows and answers are as in run_squad.py of google-research/bert: the n best answers of each question are
selected over all windows of its context. The text of an answer is the context from the first character of its
first token to the last character of its last token, with each run of whitespace replaced by one space.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import os
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from bert_jax.io.wording import counted
from bert_jax.objectives.spans import Spans
from bert_jax.settings.config_fields import option
from bert_jax.tasks import registry
from bert_jax.tasks.base import DataConfig, FinetuneTask, WindowsConfig
from bert_jax.tasks.predictions import DIGITS, Predictions
from bert_jax.tasks.question_answering.question_files import (
    BETWEEN_WORDS,
    NO_ANSWER,
    UNKNOWN,
    Questions,
    read_questions,
    text_of,
)
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import NO_TARGET, EncodedRows
from bert_jax.tasks.table import SOURCE, LineReader
from bert_jax.tokenization import Tokenizer

_CONTEXTS = 2048  # that are tokenized at a time
_BETWEEN_WORDS = np.array([0x20, 0x09, 0x0D, 0x0A, 0x202F], np.uint32)
_CONTEXT_PER_TOKEN = 0.01  # as in run_squad.py, longer windows are preferred by this score per token

Logits = tuple[float, float]  # start and end logit of an answer


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


# Rows


@dataclasses.dataclass(kw_only=True)
class WindowRows(EncodedRows):
    """Rows of [CLS] question [SEP] window [SEP]. The windows of a question are consecutive.

    `targets` are int32 `starts` and `ends` [N], positions in the row. They are 0, the position of [CLS], if
    the window does not contain the answer, and `NO_TARGET` if the answer is unknown.

    Attributes:
        characters: int32 [total, 2], the character positions in the context where each token begins and ends;
            -1 for tokens outside the context.
        is_max_context: bool [total], whether the token has the most context in this window.
        cut_questions: the number of questions that were truncated to `max_query_length`.
    """

    characters: np.ndarray
    is_max_context: np.ndarray
    cut_questions: int

    def compared(self, outputs: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns the outputs by row, float32 [N, longest row, 2], and the targets of the rows.

        Padding has the lowest finite number.
        """
        lengths = self.lengths
        shape = (len(self), lengths.max(initial=0), outputs.shape[-1])
        rows = np.full(shape, np.finfo(np.float32).min, np.float32)
        rows[np.arange(rows.shape[1]) < lengths[:, None]] = outputs
        return rows, self.targets


def _word_of_characters(context: str) -> np.ndarray:
    """Returns the word number of each character, int64 [characters]; a word includes the space after it."""
    codes = np.frombuffer(context.encode("utf-32-le"), np.uint32)
    inside = ~np.isin(codes, _BETWEEN_WORDS)
    return np.cumsum(inside & ~np.concatenate([[False], inside[:-1]])) - 1


def _answer_tokens(
    tokens: np.ndarray, characters: np.ndarray, words: np.ndarray, start: int, end: int, answer: list[int]
) -> tuple[int, int]:
    """Returns the first and the last token of the answer at the characters `start` to `end` (exclusive).

    The answer is first extended to whole words. If the tokens of these words contain the answer's tokens, the
    first such span is returned: "1895" in "(1895–1943)" stays "1895". Otherwise the words are returned:
    "Japan" in "Japanese" is extended to the whole word.
    """
    word_of_token = words[characters[:, 0].clip(max=len(words) - 1)]
    first = int(np.searchsorted(word_of_token, words[start], "left"))
    last = int(np.searchsorted(word_of_token, words[end - 1], "right")) - 1
    span, size = tokens[first : last + 1].tolist(), len(answer)
    for i in range(len(span) - size + 1 if size else 0):
        if span[i : i + size] == answer:
            return first + i, first + i + size - 1
    return first, last


def encode(
    questions: Questions, tokenizer: Tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int
) -> WindowRows:
    """Tokenizes each question and context once, and splits the contexts into windows.

    Windows begin every `doc_stride` tokens; questions are truncated to `max_query_length` tokens.
    """
    contexts = []
    for begin in range(0, len(questions.contexts), _CONTEXTS):
        contexts += tokenizer.encode_with_offsets(questions.contexts[begin : begin + _CONTEXTS])
    asked = tokenizer.encode_batch(questions.questions)
    answers = tokenizer.encode_batch([_answer(questions, i, tokenizer) for i in range(len(asked))])
    words: dict[int, np.ndarray] = {}
    builder, targets, cut = assembly.RowBuilder(tokenizer), [], 0
    # (begin of the window in `tokens`, characters of its tokens, whether tokens have the most context there)
    parts: list[tuple[int, np.ndarray, np.ndarray]] = []
    for i, question in enumerate(asked):
        cut += len(question) > max_query_length
        question = question[:max_query_length]
        place = questions.context_of[i]
        tokens, characters = contexts[place]
        start = questions.starts[i]
        target = None if start == UNKNOWN else (-1, -1)
        if start not in (UNKNOWN, NO_ANSWER) and len(tokens):
            if place not in words:
                words[place] = _word_of_characters(questions.contexts[place])
            end = start + len(questions.answers[i][0])
            target = _answer_tokens(tokens, characters, words[place], start, end, answers[i])
        room = tokenizer.layout.room(max_seq_length, pair=True) - len(question)
        offsets = np.arange(len(tokens) + 1)
        spans = assembly.split(offsets, room, doc_stride, fill_last=False)
        best = assembly.most_context(offsets, spans, _CONTEXT_PER_TOKEN) if len(spans) > 1 else None
        for number, (first, last) in enumerate(spans):
            row_begin = builder.add(i, question, tokens[first:last])
            window = row_begin + tokenizer.layout.first_length(len(question), pair=True)
            is_best = np.ones(last - first, bool) if best is None else best[first:last] == number
            parts.append((window, characters[first:last], is_best))
            targets.append(_target(target, first, last, window - row_begin))
    starts, ends = np.array(targets, np.int32).T
    all_characters = np.full((builder.total, 2), -1, np.int32)
    is_max_context = np.zeros(builder.total, bool)
    for window, characters, is_best in parts:
        all_characters[window : window + len(is_best)] = characters
        is_max_context[window : window + len(is_best)] = is_best
    return WindowRows(
        **builder.arrays(max_seq_length),
        targets={"starts": starts.copy(), "ends": ends.copy()},
        characters=all_characters,
        is_max_context=is_max_context,
        cut_questions=cut,
    )


def _answer(questions: Questions, number: int, tokenizer: Tokenizer) -> str:
    answer = questions.answers[number][0] if questions.answers[number] else ""
    start = questions.starts[number]
    if start <= 0 or not questions.contexts[questions.context_of[number]][start - 1].isspace():
        return answer
    return tokenizer.after_space(answer)


def _target(target: tuple[int, int] | None, first: int, last: int, size: int) -> tuple[int, int]:
    """Returns the position of `target` in a window first:last at `size`; (0, 0) if it is not all inside."""
    if target is None:
        return NO_TARGET, NO_TARGET
    if first <= target[0] and target[1] < last:
        return target[0] - first + size, target[1] - first + size
    return 0, 0


# Predictions


@dataclasses.dataclass
class AnswerPredictions(Predictions):
    """Predictions of question answering: an answer to each of N questions, in the order of the file.

    Attributes:
        texts: the predicted answer of each question; "" for no answer.
        n_best: lists of the best answers, with the fields of nbest_predictions.json: text, probability,
            start_logit and end_logit.
        null_odds: the score of no answer minus the score of the best answer; 0 if no span is a candidate.
            Empty if every question has an answer.
        non_null: the best answer that is not empty; "" if no span is a candidate.
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
    for example, (begin, end) in zip(data.examples, itertools.pairwise(data.offsets), strict=True):
        first, last = begin + np.argsort(-outputs[begin:end], axis=0, kind="stable")[:n_best].T
        first, last = first[data.is_max_context[first]], last[data.characters[last, 0] >= 0]
        size = last - first[:, None] + 1
        i, j = np.nonzero((size >= 1) & (size <= max_answer_length))
        parts.append((np.full(len(i), example), first[i], last[j]))
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

    They are nbest_predictions.json and null_odds.json, or nbest_NAME.json and null_odds_NAME.json.
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


def best_match(answers: Sequence[str], prediction: str, v2: bool) -> tuple[float, float]:
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


def score_v2(
    answers: Sequence[Sequence[str]],
    predictions: Sequence[str],
    non_null: Sequence[str],
    null_odds: Sequence[float],
) -> dict[str, float]:
    """Returns the metrics of SQuAD 2.0, in percent, with the names of the official script.

    A question without an answer has an empty list in `answers`. The results are `exact`, `f1` and `total`;
    the same for questions with an answer (`HasAns_`) and without an answer (`NoAns_`), if there are any;
    `best_exact` and `best_f1`, the scores with the best threshold; and `best_exact_thresh` and
    `best_f1_thresh`.
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


# The task


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

    def encode(self, examples: Questions) -> WindowRows:
        c = self.config
        return encode(examples, self.tokenizer, c.max_seq_length, c.doc_stride, c.max_query_length)

    def decode(self, examples: Questions, rows: WindowRows, outputs: np.ndarray) -> AnswerPredictions:
        return decode(examples, rows, outputs, self.config)

    def score(self, predictions: AnswerPredictions) -> dict[str, float]:
        expected, found = predictions.examples.answers, predictions
        if self.config.v2:
            return score_v2(expected, found.texts, found.non_null, found.null_odds)
        exact, f1 = matches(expected, found.texts, v2=False).T
        return {"f1": 100 * float(np.mean(f1)), "exact_match": 100 * float(np.mean(exact))}

    def describe(self, examples: Questions, rows: WindowRows) -> str:
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
