"""Texts longer than a row: overlapping windows of them, and how the outputs of several rows become one.

A text is counted in tokens, and cut between units: single tokens, or words of several tokens. `offsets` int64
[units + 1] are the tokens before each unit; of single tokens they are 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.errors import UserError

_MAX_SHOWN = 4  # numbers of windows that are listed one by one

Ids = list[int]
Pair = tuple[Ids, Ids | None]
Span = tuple[int, int]  # [begin, end) in units


def split(offsets: np.ndarray, room: int, stride: int, *, fill_last: bool = True) -> list[Span]:
    """Splits a text into windows that cover all of its units, in order.

    Args:
        offsets: int64 [units + 1]; no unit may have more tokens than `room`.
        room: tokens of a window at most.
        stride: tokens from the beginning of a window to that of the next one. Windows are never further apart
            than they are long.
        fill_last: whether the last window begins as early as it has room for, instead of at its stride.
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
    """Returns int64 [units]: the window in which each unit has most context; the first of equal ones.

    Context is the smaller of what is to the left and to the right of the unit in the window
    (google-research/bert, run_squad.py), plus `per_token` for each token of the window.

    Args:
        offsets: int64 [units + 1].
        spans: as `split` returns them.
        per_token: 0.01 in run_squad.py.
    """
    context = np.full((len(spans), len(offsets) - 1), -np.inf)
    for row, (begin, end) in enumerate(spans):
        left = offsets[begin:end] - offsets[begin]
        right = offsets[end] - offsets[begin + 1 : end + 1]
        context[row, begin:end] = np.minimum(left, right) + per_token * (offsets[end] - offsets[begin])
    return np.argmax(context, axis=0)


def widen(offsets: np.ndarray, begin: int, end: int, room: int) -> Span:
    """Returns the units [begin, end) with as many units around them as fit into `room` tokens.

    Both sides get the same number of tokens, and what one side does not have goes to the other.
    """
    spare = room - (offsets[end] - offsets[begin])
    before, after = offsets[begin] - offsets[0], offsets[-1] - offsets[end]
    left = min(before, max(spare // 2, spare - after))
    right = min(after, spare - left)
    first = int(np.searchsorted(offsets, offsets[begin] - left))
    last = int(np.searchsorted(offsets, offsets[end] + right, side="right")) - 1
    return first, last


def check_stride(stride: int, max_length: int, room: int, pairs: bool) -> None:
    """Refuses a stride that would leave tokens between two windows out.

    Args:
        stride: tokens from one window to the next; 0 for no windows.
        max_length: tokens of a row with the special ones.
        room: tokens of a row without the special ones.
        pairs: whether rows have two texts.

    Raises:
        UserError: it is negative, or more than the smallest room that `split_pair` has for a window.
    """
    largest = (room + 1) // 2 if pairs else room
    if not 0 <= stride <= largest:
        what = "of the longer text of a pair" if pairs else "of a text"
        raise UserError(
            f"doc_stride={stride}: expected 0 (long texts are cut) to {largest}, the tokens {what} that a "
            f"row of max_length={max_length} has room for; try {max(1, largest // 2)}"
        )


def split_pair(a: Ids, b: Ids | None, room: int, stride: int) -> tuple[list[Pair], bool]:
    """Splits a text, whose `b` is None, or a pair into rows (A, B).

    What fits is one row. Of a pair that does not, the longer text has windows (B, where both are as long),
    and the other is in each row, cut to half of the room at most.

    Args:
        a: ids of the first text, without special tokens.
        b: ids of the second text.
        room: tokens of both together, at most.
        stride: tokens from one window to the next.

    Returns:
        The rows, and whether some tokens are in none of them.
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


def split_question(a: Ids, choices: Sequence[Ids], room: int, stride: int) -> tuple[list[Pair], bool]:
    """Splits a question into rows (A, choice): one window of its text after the other, each with every
    choice.

    Each choice sees the same windows of A, so that two of them differ only in the choice. There is room for
    the longest choice, which may have half of a row, and more where A leaves more.

    Args:
        a: ids of the text, without special tokens.
        choices: ids of each choice.
        room: tokens of A and a choice together, at most.
        stride: tokens from one window to the next.

    Returns:
        The rows, and whether some tokens are in none of them.
    """
    longest = max(map(len, choices))
    kept = min(longest, max(room // 2, room - len(a)))
    pairs = [(window, choice[:kept]) for window in _windows(a, room - kept, stride) for choice in choices]
    return pairs, kept < longest


def _windows(tokens: Ids, room: int, stride: int) -> Iterator[Ids]:
    for begin, end in split(np.arange(len(tokens) + 1), room, stride):
        yield tokens[begin:end]


def row_weights(examples: np.ndarray) -> np.ndarray:
    """Returns float32 [N]: the weight of each row, so that all examples count the same and the mean is 1.

    Args:
        examples: int64 [N], the example of each row, from 0, ascending.
    """
    counts = np.bincount(examples)
    return (len(examples) / (max(1, len(counts)) * counts[examples])).astype(np.float32)


def first_rows(examples: np.ndarray) -> np.ndarray:
    """Returns int64 [examples]: the first row of each example; `examples` as in `row_weights`."""
    return np.flatnonzero(np.diff(examples, prepend=-1))


def join(outputs: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Returns float32 [examples, C], the mean over the rows of each example of outputs [N, C].

    Args:
        outputs: float32 [N, C].
        examples: as in `row_weights`.
    """
    counts = np.bincount(examples).astype(np.float32)
    return np.add.reduceat(outputs, first_rows(examples), axis=0) / counts[:, None]


def describe(examples: np.ndarray, cut: int, what: str = "the shorter text") -> str:
    """Returns a line on how many examples have how many windows.

    Args:
        examples: as in `row_weights`.
        cut: the number of examples that lost tokens of `what`.
        what: the part of an example that is cut.
    """
    numbers, found = np.unique(np.bincount(examples), return_counts=True)
    parts = [f"{count:,} in {n}" for n, count in zip(numbers, found, strict=True)][:_MAX_SHOWN]
    if rest := numbers[_MAX_SHOWN:].tolist():
        parts.append(f"{found[_MAX_SHOWN:].sum():,} in {rest[0]}" + (f" to {rest[-1]}" if rest[1:] else ""))
    of_cut = f"; {what} cut in {cut:,}" if cut else ""
    return f"{len(examples):,} windows (examples: {', '.join(parts)}{of_cut})"
