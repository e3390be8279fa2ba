"""Encodes questions with windows of their contexts, as in run_squad.py of google-research/bert."""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.tasks.question_answering.question_files import NO_ANSWER, UNKNOWN, Questions
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import NO_TARGET, EncodedRows
from bert_jax.tokenization import Tokenizer

_ENCODE_CHUNK = 2048
_BETWEEN_WORDS = np.array([0x20, 0x09, 0x0D, 0x0A, 0x202F], np.uint32)
_CONTEXT_PER_TOKEN = 0.01  # as in run_squad.py, longer windows are preferred by this score per token


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
    for begin in range(0, len(questions.contexts), _ENCODE_CHUNK):
        contexts += tokenizer.encode_with_offsets(questions.contexts[begin : begin + _ENCODE_CHUNK])
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
