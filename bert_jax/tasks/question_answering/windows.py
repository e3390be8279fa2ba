"""Questions with windows of their contexts, as google-research/bert's run_squad makes them."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.tasks.question_answering.question_files import NO_ANSWER, UNKNOWN, Questions
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tokenization import Tokenizer

_ENCODE_CHUNK = 2048
_BETWEEN_WORDS = np.array([0x20, 0x09, 0x0D, 0x0A, 0x202F], np.uint32)

NO_TARGET = -1  # of a window whose answer is not known


@dataclasses.dataclass(kw_only=True)
class WindowRows(EncodedRows):
    """Rows of [CLS] question [SEP] window [SEP]; the windows of a question follow one another.

    `targets` are int32 `starts` and `ends` [N], places in the row: 0, the [CLS], where the window does not
    hold the answer, and `NO_TARGET` where that is not known.

    Attributes:
      characters: int32 [total, 2], where in the context a token begins and ends; -1 for any other token.
      is_max_context: bool [total], whether no other window shows more around this token of the context.
      cut_questions: questions that were longer than `max_query_length`.
    """

    characters: np.ndarray
    is_max_context: np.ndarray
    cut_questions: int


def window_starts(tokens: int, room: int, stride: int) -> list[int]:
    """The first token of each window of at most `room` tokens; an empty context has one window."""
    starts = [0]
    while starts[-1] + room < tokens:
        starts.append(starts[-1] + min(room, stride))
    return starts


def best_window(starts: list[int], room: int, tokens: int) -> np.ndarray:
    """int64 [tokens]: the window in which each token has most context.

    That is the least of what is to its left and to its right, plus a hundredth of the window's length; the
    first window where several have as much.
    """
    begins = np.array(starts)[:, None]
    lengths = np.minimum(room, tokens - begins)
    place = np.arange(tokens)
    left, right = place - begins, begins + lengths - 1 - place
    score = np.minimum(left, right) + 0.01 * lengths
    return np.argmax(np.where((left >= 0) & (right >= 0), score, -np.inf), axis=0)


def word_of_characters(context: str) -> np.ndarray:
    """int64 [characters]: the word that each belongs to; whitespace to the one before it, -1 at the front."""
    codes = np.frombuffer(context.encode("utf-32-le"), np.uint32)
    inside = ~np.isin(codes, _BETWEEN_WORDS)
    return np.cumsum(inside & ~np.concatenate([[False], inside[:-1]])) - 1


def answer_tokens(
    tokens: np.ndarray, characters: np.ndarray, words: np.ndarray, start: int, end: int, answer: list[int]
) -> tuple[int, int]:
    """The first and the last token of the answer at characters `start` to `end` (exclusive).

    The tokens of the words that it touches, or the first stretch in them that is the answer token for token:
    "(1895–1943)" is narrowed to "1895", while "Japan" in "Japanese" stays the whole word.

    Args:
      tokens: int32 [n] of the context.
      characters: int32 [n, 2].
      words: int64 [characters], see `word_of_characters`.
      start, end: characters of the context.
      answer: tokens of the answer alone.
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
    questions: Questions, tokenizer: Tokenizer, max_length: int, doc_stride: int, max_query_length: int
) -> WindowRows:
    """Tokenizes in batches, each context once, and cuts contexts into windows."""
    contexts = []
    for begin in range(0, len(questions.contexts), _ENCODE_CHUNK):
        contexts += tokenizer.encode_with_offsets(questions.contexts[begin : begin + _ENCODE_CHUNK])
    asked = tokenizer.encode_batch(questions.questions)
    answers = tokenizer.encode_batch([texts[0] if texts else "" for texts in questions.answers])
    words: dict[int, np.ndarray] = {}
    rows = _Rows(tokenizer.cls_id, tokenizer.sep_id)
    cut = 0
    for i, question in enumerate(asked):
        cut += len(question) > max_query_length
        question = question[:max_query_length]
        place = questions.context_of[i]
        tokens, characters = contexts[place]
        start = questions.starts[i]
        target = None if start == UNKNOWN else (-1, -1)
        if start not in (UNKNOWN, NO_ANSWER) and len(tokens):
            if place not in words:
                words[place] = word_of_characters(questions.contexts[place])
            end = start + len(questions.answers[i][0])
            target = answer_tokens(tokens, characters, words[place], start, end, answers[i])
        room = max_length - len(question) - 3
        starts = window_starts(len(tokens), room, doc_stride)
        best = best_window(starts, room, len(tokens)) if len(starts) > 1 else None
        for number, first in enumerate(starts):
            part = slice(first, first + room)
            is_best = np.ones(len(tokens), bool) if best is None else best[part] == number
            rows.add(i, question, tokens[part], characters[part], is_best, target, first)
    return rows.joined(tokenizer.pad_id, max_length, cut)


class _Rows:
    def __init__(self, cls_id: int, sep_id: int):
        self._cls, self._sep = [cls_id], np.array([sep_id], np.int32)
        self._none = np.full((1, 2), -1, np.int32)
        self._tokens, self._characters, self._is_best = [], [], []
        self._first_lengths, self._lengths, self._examples, self._targets = [], [], [], []

    def add(self, example, question, tokens, characters, is_best, target, first):
        front = np.array([*self._cls, *question, *self._sep], np.int32)
        size = len(front)
        self._tokens += [front, tokens, self._sep]
        self._characters += [np.full((size, 2), -1, np.int32), characters, self._none]
        self._is_best += [np.zeros(size, bool), is_best, np.zeros(1, bool)]
        self._first_lengths.append(size)
        self._lengths.append(size + len(tokens) + 1)
        self._examples.append(example)
        if target is None:
            self._targets.append((NO_TARGET, NO_TARGET))
        elif first <= target[0] and target[1] < first + len(tokens):
            self._targets.append((target[0] - first + size, target[1] - first + size))
        else:
            self._targets.append((0, 0))

    def joined(self, pad_id, max_length, cut):
        starts, ends = np.array(self._targets, np.int32).T
        return WindowRows(
            np.concatenate(self._tokens),
            np.concatenate([[0], np.cumsum(self._lengths)]),
            np.array(self._first_lengths, np.int32),
            {"starts": starts.copy(), "ends": ends.copy()},
            pad_id,
            max_length,
            examples=np.array(self._examples),
            characters=np.concatenate(self._characters),
            is_max_context=np.concatenate(self._is_best),
            cut_questions=cut,
        )
