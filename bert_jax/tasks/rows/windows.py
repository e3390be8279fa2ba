"""Splits texts longer than a row into overlapping windows, and averages the outputs of the windows.

A text is split only between units, which are single tokens, or words of several tokens. `offsets`, int64
[units + 1], is the number of tokens before each unit; for single tokens it is 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted

Ids = list[int]
Pair = tuple[Ids, Ids | None]
Span = tuple[int, int]  # [begin, end) in units


def split(offsets: np.ndarray, room: int, stride: int, *, fill_last: bool = True) -> list[Span]:
    """Splits a text into windows that cover all of its units, in order.

    Args:
        offsets: int64 [units + 1]; no unit may have more tokens than `room`.
        room: the maximum number of tokens of a window.
        stride: the number of tokens from the beginning of a window to that of the next one; `room` if it is
            larger than that, so that no tokens are skipped.
        fill_last: whether the last window is extended to the left as far as `room` permits, instead of
            beginning at its stride.

    Returns:
        The units [begin, end) of each window.
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
    """Returns the window in which each unit has the most context, or the first of several: int64 [units].

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


def widen(offsets: np.ndarray, begin: int, end: int, room: int) -> Span:
    """Extends the units [begin, end) by as many units on both sides as fit into `room` tokens.

    Each side gets half of the spare tokens. If the text does not have that many on one side, the rest goes to
    the other side.
    """
    spare = room - (offsets[end] - offsets[begin])
    before, after = offsets[begin] - offsets[0], offsets[-1] - offsets[end]
    left = min(before, max(spare // 2, spare - after))
    right = min(after, spare - left)
    first = int(np.searchsorted(offsets, offsets[begin] - left))
    last = int(np.searchsorted(offsets, offsets[end] + right, side="right")) - 1
    return first, last


def check_stride(stride: int, max_seq_length: int, room: int, pairs: bool) -> None:
    """Raises UserError if a stride skips tokens between two windows of `split_pair`."""
    largest = (room + 1) // 2 if pairs else room
    if not 0 <= stride <= largest:
        what = "of the longer text of a pair" if pairs else "of a text"
        raise UserError(
            f"doc_stride={stride}: expected 0 (long texts are cut) to {largest}, the tokens {what} in a row "
            f"of max_seq_length={max_seq_length}"
        )


def split_pair(a: Ids, b: Ids | None, room: int, stride: int) -> tuple[list[Pair], bool]:
    """Splits a text or a pair of texts into rows (A, B).

    An example that fits is a single row. Otherwise the longer text of a pair (B, if both have the same
    length) is split into windows, and the other one is repeated in each row, truncated to at most half of the
    room.

    Args:
        a: the token ids of the first text, without special tokens.
        b: the token ids of the second text; None for a single text.
        room: the maximum number of tokens of both texts together.
        stride: the number of tokens from one window to the next.

    Returns:
        The rows, and whether any tokens are in no row.
    """
    if len(a) + len(b or ()) <= room:
        return [(a, b)], False
    if b is None:
        return [(window, None) for window in _windows(a, room, stride)], False
    if len(a) > len(b):
        kept = b[: room // 2]
        return [(window, kept) for window in _windows(a, room - len(kept), stride)], kept != b
    kept = a[: room // 2]
    return [(kept, window) for window in _windows(b, room - len(kept), stride)], kept != a


def _windows(tokens: Ids, room: int, stride: int) -> Iterator[Ids]:
    for begin, end in split(np.arange(len(tokens) + 1), room, stride):
        yield tokens[begin:end]


def row_weights(examples: np.ndarray) -> np.ndarray:
    """Returns row weights with mean 1, whose sum is the same for every example: float32 [N].

    `examples`, int64 [N], is the example of each row, from 0, ascending.
    """
    counts = np.bincount(examples)
    return (len(examples) / (max(1, len(counts)) * counts[examples])).astype(np.float32)


def first_rows(examples: np.ndarray) -> np.ndarray:
    """Returns the first row of each example: int64 [examples]; `examples` as in `row_weights`."""
    return np.flatnonzero(np.diff(examples, prepend=-1))


def join(outputs: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Returns the mean outputs, float32 [N, C], over the rows of each example: float32 [examples, C]."""
    counts = np.bincount(examples).astype(np.float32)
    return np.add.reduceat(outputs, first_rows(examples), axis=0) / counts[:, None]


def describe(examples: np.ndarray, cut: int) -> str:
    """Returns a line on the numbers of windows; the shorter text was truncated in `cut` of the examples."""
    numbers = np.bincount(examples)
    of_cut = f"; the shorter text cut in {cut:,}" if cut else ""
    windows = counted(len(examples), "window")
    return f"{windows} (of {counted(len(numbers), 'example')}, up to {max(numbers)} each{of_cut})"
