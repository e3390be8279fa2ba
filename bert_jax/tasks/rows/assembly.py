"""Assembles examples into rows of tokens, and splits texts longer than a row into overlapping windows.

All tasks build their rows here. A text is split only between units, which are single tokens or words of
several tokens. `offsets`, int64 [units + 1], are the numbers of tokens before each unit: 0, 1, 2, ... for
single tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Examples
from bert_jax.tokenization import Tokenizer

Ids = list[int]
Pair = tuple[Ids, Ids | None]
Span = tuple[int, int]  # [begin, end) in units

_ENCODE_CHUNK = 8192
_MANY_UNKNOWN = 0.05  # with a larger fraction of [UNK], the vocabulary is probably for another language


class RowBuilder:
    """Collects rows in the layout of a tokenizer, such as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    `total` is the total number of tokens so far.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self.total = tokenizer, 0
        self._rows: list[np.ndarray] = []
        self._first_lengths: list[int] = []
        self._examples: list[int] = []

    def add(
        self,
        example: int,
        first: Sequence[int] | np.ndarray,
        second: Sequence[int] | np.ndarray | None = None,
    ) -> int:
        """Adds a row, from ids without special tokens, and returns where it begins in `tokens`."""
        begin, layout = self.total, self._tokenizer.layout
        self._rows.append(layout.row(first, second))
        self._first_lengths.append(layout.first_length(len(first), second is not None))
        self._examples.append(example)
        self.total += len(self._rows[-1])
        return begin

    def arrays(self, max_seq_length: int) -> dict[str, Any]:
        """Returns the collected rows as keyword arguments of `EncodedRows`, with this `max_seq_length`."""
        return {
            "tokens": np.concatenate(self._rows or [np.empty(0, np.int32)]),
            "offsets": np.cumsum([0, *map(len, self._rows)], dtype=np.int64),
            "first_lengths": np.array(self._first_lengths, np.int32),
            "pad_id": self._tokenizer.pad_id,
            "max_seq_length": max_seq_length,
            "examples": np.array(self._examples, np.int64),
        }


class UnknownTokens:
    """Counts [UNK] in the rows of a model, and logs one warning if it is more than 5% of the tokens.

    `str` returns the end of a log line, "; 1.2% of the tokens are [UNK]", or "" if there are none.
    """

    def __init__(self, tokenizer: Tokenizer, log: Callable[[str], None]):
        self._tokenizer, self._log = tokenizer, log
        self._unknown = self._total = 0
        self._warned = False

    def add(self, tokens: np.ndarray) -> UnknownTokens:
        """Counts the tokens of rows, int32 [N], except special tokens."""
        self._unknown += int(np.sum(tokens == self._tokenizer.unk_id))
        self._total += int(np.sum(np.isin(tokens, self._tokenizer.layout.special_ids, invert=True)))
        if not self._warned and self._unknown > _MANY_UNKNOWN * self._total:
            self._warned = True
            self._log(
                f"warning: {str(self)[2:]}: the vocabulary {self._tokenizer.path} does not fit the text"
            )
        return self

    def __str__(self) -> str:
        unknown = self._tokenizer.special_tokens["unk"]
        return f"; {self._unknown / self._total:.1%} of the tokens are {unknown}" if self._unknown else ""


def encode(
    examples: Examples,
    tokenizer: Tokenizer,
    max_seq_length: int,
    doc_stride: int = 0,
    target_dtype: type = np.int32,
) -> EncodedRows:
    """Tokenizes texts or pairs of texts, with or without labels, and returns their rows.

    A row has at most `max_seq_length` tokens, including special tokens. Longer examples are truncated
    (`truncate_pair`), or split into windows if `doc_stride` is not 0 (`split_pair`).
    """
    first, texts_b = tokenize(tokenizer, examples.texts_a), examples.texts_b or [None] * len(examples)
    of_pairs = tokenize(tokenizer, [text for text in texts_b if text is not None])
    second = (None if text is None else next(of_pairs) for text in texts_b)
    rooms = [tokenizer.layout.room(max_seq_length, pair) for pair in (False, True)]
    rows = (
        split_pair(a, b, rooms[b is not None], doc_stride)
        if doc_stride
        else truncate(a, b, rooms[b is not None])
        for a, b in zip(first, second, strict=True)
    )
    options: dict[str, Any] = {"target_dtype": target_dtype, "has_windows": bool(doc_stride)}
    return assemble(rows, examples.labels, tokenizer, max_seq_length, **options)


def encode_choices(
    texts: Sequence[str],
    choices: Sequence[Sequence[str]],
    labels: Sequence[Any],
    tokenizer: Tokenizer,
    max_seq_length: int,
) -> EncodedRows:
    """Tokenizes texts with choices and returns a group of rows for each text, with one row per choice.

    `labels` has one int per text or is empty. Rows have at most `max_seq_length` tokens.
    """
    count = len(choices[0])
    room = tokenizer.layout.room(max_seq_length, pair=True)
    endings = tokenize(tokenizer, [choice for group in choices for choice in group])
    first = (text for text in tokenize(tokenizer, texts) for _ in range(count))
    rows = (truncate(a, b, room) for a, b in zip(first, endings, strict=True))
    return assemble(grouped(rows, count), labels, tokenizer, max_seq_length, rows_per_example=count)


def grouped(rows: Iterable[tuple[Sequence[Pair], bool]], count: int) -> Iterator[tuple[Sequence[Pair], bool]]:
    """Yields the rows of each group of `count` examples, and whether one of them was truncated."""
    for group in zip(*[iter(rows)] * count, strict=True):
        pairs, cut = zip(*group, strict=True)
        yield list(itertools.chain.from_iterable(pairs)), any(cut)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Ids]:
    """Yields the token ids of each text, without special tokens. Texts are tokenized in batches."""
    for begin in range(0, len(texts), _ENCODE_CHUNK):
        yield from tokenizer.encode_batch(texts[begin : begin + _ENCODE_CHUNK])


def assemble(
    rows_of_examples: Iterable[tuple[Sequence[Pair], bool]],
    labels: Sequence[Any],
    tokenizer: Tokenizer,
    max_seq_length: int,
    *,
    target_dtype: Any = np.int32,
    rows_per_example: int = 1,
    has_windows: bool = False,
) -> EncodedRows:
    """Assembles the rows of all examples; `labels` has one entry per example, or is empty.

    `rows_of_examples` has, for each example, the pairs (A, B) of token ids of its rows, and whether it was
    truncated. With `has_windows`, the outputs of the rows of an example are averaged.
    """
    builder, truncated = RowBuilder(tokenizer), 0
    for number, (pairs, cut) in enumerate(rows_of_examples):
        truncated += cut
        for first, second in pairs:
            builder.add(number, first, second)
    arrays = builder.arrays(max_seq_length)
    owners, weights = arrays["examples"], None
    if has_windows:  # weights have mean 1 and the same sum for every example
        counts = np.bincount(owners)
        weights = (len(owners) / (max(1, len(counts)) * counts[owners])).astype(np.float32)
    return EncodedRows(
        **arrays,
        targets={} if not labels else {"targets": np.asarray(labels, target_dtype)[owners]},
        truncated=truncated,
        rows_per_example=rows_per_example,
        row_weights=weights,
    )


def truncate(a: Ids, b: Ids | None, room: int) -> tuple[list[Pair], bool]:
    """Returns the only row of a text or pair, with at most `room` tokens, and whether it was truncated."""
    if b is None:
        return [(a[:room], None)], len(a) > room
    keep_a, keep_b = truncate_pair(len(a), len(b), room)
    return [(a[:keep_a], b[:keep_b])], keep_a + keep_b < len(a) + len(b)


def truncate_pair(length_a: int, length_b: int, budget: int) -> tuple[int, int]:
    """Returns the remaining tokens of A and B if tokens are removed one by one from the longer text.

    If both have the same length, B loses a token. This is the loop in `_truncate_seq_pair` of
    google-research/bert in closed form. `budget` is the maximum total number of tokens.
    """
    keep_a = min(length_a, max(budget - length_b, budget - budget // 2))
    return keep_a, min(length_b, budget - keep_a)


def split_pair(a: Ids, b: Ids | None, room: int, stride: int) -> tuple[list[Pair], bool]:
    """Splits a text or a pair of texts into rows (A, B); also returns whether some tokens are in no row.

    An example that fits is a single row. Otherwise the longer text of a pair (B if both have the same length)
    is split into windows with a stride of `stride` tokens; every row repeats the other text, truncated to at
    most half of the room. `room` is the maximum number of tokens of both texts, without special tokens.
    """

    def windows(tokens: Ids, room: int) -> list[Ids]:
        return [tokens[begin:end] for begin, end in split(np.arange(len(tokens) + 1), room, stride)]

    if len(a) + len(b or ()) <= room:
        return [(a, b)], False
    if b is None:
        return [(window, None) for window in windows(a, room)], False
    if len(a) > len(b):
        kept = b[: room // 2]
        return [(window, kept) for window in windows(a, room - len(kept))], kept != b
    kept = a[: room // 2]
    return [(kept, window) for window in windows(b, room - len(kept))], kept != a


def split(offsets: np.ndarray, room: int, stride: int, *, fill_last: bool = True) -> list[Span]:
    """Splits a text into windows of at most `room` tokens and returns the units [begin, end) of each one.

    The windows cover all units, in order; no unit may have more tokens than `room`. They begin every `stride`
    tokens, or every `room` tokens if that is less, so that no tokens are skipped. With `fill_last`, the last
    window is extended to the left as far as `room` permits.
    """
    units = len(offsets) - 1
    if offsets[-1] - offsets[0] <= room:
        return [(0, units)]
    spans: list[Span] = []
    begin = 0
    while True:
        end = int(np.searchsorted(offsets, offsets[begin] + room, side="right")) - 1
        if end == units:
            if fill_last:
                begin = int(np.searchsorted(offsets, offsets[-1] - room))
            return [*spans, (begin, units)]
        spans.append((begin, end))
        following = int(np.searchsorted(offsets, offsets[begin] + min(stride, room)))
        begin = min(max(following, begin + 1), end)


def most_context(offsets: np.ndarray, spans: Sequence[Span], per_token: float = 0.0) -> np.ndarray:
    """Returns the first window in which each unit has the most context, int64 [units].

    The context of a unit is the number of tokens to its left or to its right in the window, whichever is
    smaller, plus `per_token` (0.01 in run_squad.py of google-research/bert) for each token of the window.
    """
    best = np.full(len(offsets) - 1, -np.inf)
    window = np.zeros(len(best), np.int64)
    for number, (begin, end) in enumerate(spans):
        left = offsets[begin:end] - offsets[begin]
        right = offsets[end] - offsets[begin + 1 : end + 1]
        context = np.minimum(left, right) + per_token * (offsets[end] - offsets[begin])
        window[begin:end][context > best[begin:end]] = number
        best[begin:end] = np.maximum(best[begin:end], context)
    return window
