"""Questions with windows of their contexts, as google-research/bert's run_squad makes them."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.tasks.question_answering.question_files import NO_ANSWER, UNKNOWN, Questions
from bert_jax.tasks.rows import windows
from bert_jax.tasks.rows.assembly import RowBuilder
from bert_jax.tasks.rows.batches import NO_TARGET, EncodedRows
from bert_jax.tokenization import Tokenizer

_ENCODE_CHUNK = 2048
_BETWEEN_WORDS = np.array([0x20, 0x09, 0x0D, 0x0A, 0x202F], np.uint32)
_CONTEXT_PER_TOKEN = 0.01  # by which run_squad.py prefers longer windows


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


def padded(data: EncodedRows, scores: np.ndarray) -> np.ndarray:
    """Returns the scores of every row, padded with the lowest finite number: float32 [N, longest row, C].

    Args:
        data: the rows.
        scores: float32 [total, C], of their tokens end to end.
    """
    lengths = data.lengths
    shape = (len(data), lengths.max(initial=0), scores.shape[-1])
    rows = np.full(shape, np.finfo(np.float32).min, np.float32)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = scores
    return rows


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
    builder, targets, cut = RowBuilder(tokenizer), [], 0
    parts: list[tuple[int, np.ndarray, np.ndarray]] = []  # where a window is in `tokens`, and of what
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
        room = tokenizer.layout.room(max_length, pair=True) - len(question)
        offsets = np.arange(len(tokens) + 1)
        spans = windows.split(offsets, room, doc_stride, fill_last=False)
        best = windows.most_context(offsets, spans, _CONTEXT_PER_TOKEN) if len(spans) > 1 else None
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
        **builder.arrays(max_length),
        targets={"starts": starts.copy(), "ends": ends.copy()},
        characters=all_characters,
        is_max_context=is_max_context,
        cut_questions=cut,
    )


def _target(target: tuple[int, int] | None, first: int, last: int, size: int) -> tuple[int, int]:
    """Returns the positions in a row of an answer's first and last token.

    Args:
        target: the same in the context; None where it is not known.
        first: the token of the context with which the window begins.
        last: the token after the window.
        size: tokens of the row before the window.
    """
    if target is None:
        return NO_TARGET, NO_TARGET
    if first <= target[0] and target[1] < last:
        return target[0] - first + size, target[1] - first + size
    return 0, 0
