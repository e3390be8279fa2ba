"""Texts longer than a row: strided windows of them, whose outputs are joined into one a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from bert_jax.errors import UserError

_MOST_SHOWN = 4  # of the numbers of windows, one by one

Ids = list[int]
Pair = tuple[Ids, Ids | None]


def check_stride(stride: int, max_length: int, pairs: bool) -> None:
    """Refuses a stride that would leave tokens between two windows out.

    Raises:
      UserError: it is negative, or more than the least room that `split` has for a window.
    """
    most = (max_length - 2) // 2 if pairs else max_length - 2
    if not 0 <= stride <= most:
        what = "of the longer text of a pair" if pairs else "of a text"
        raise UserError(
            f"doc_stride={stride}: expected 0 (long texts are cut) to {most}, the tokens {what} that a row "
            f"of max_length={max_length} has room for; try {max(1, most // 2)}"
        )


def split(a: Ids, b: Ids | None, max_length: int, stride: int) -> tuple[list[Pair], bool]:
    """The rows (A, B) of a text, whose `b` is None, or of a pair; and whether some tokens are in none.

    What fits is one row. Of a pair that does not, the longer text has windows (B, where both are as long),
    and the other is in each row, cut to half of the room at most. Windows are `stride` tokens apart, but for
    the last one, which ends where the text does and is as long as the others; and never further apart than
    they are long.

    Args:
      max_length: tokens of a row with [CLS] and each [SEP].
    """
    budget = max_length - (2 if b is None else 3)
    if len(a) + len(b or ()) <= budget:
        return [(a, b)], False
    if b is None:
        return [(window, None) for window in _windows(a, budget, stride)], False
    if len(a) > len(b):
        kept = b[: budget // 2]
        return [(window, kept) for window in _windows(a, budget - len(kept), stride)], kept != b
    kept = a[: budget // 2]
    return [(kept, window) for window in _windows(b, budget - len(kept), stride)], kept != a


def split_question(a: Ids, choices: Sequence[Ids], max_length: int, stride: int) -> tuple[list[Pair], bool]:
    """The rows (A, choice) of a question, a window of its text after the other, each with every choice; and
    whether some tokens are in none.

    Each choice sees the same windows of A, so that what tells two of them apart is the choice: there is room
    for the longest one, which may have half of a row, and more where A leaves more.

    Args:
      max_length, stride: as in `split`.
    """
    budget = max_length - 3
    longest = max(map(len, choices))
    room = min(longest, max(budget // 2, budget - len(a)))
    pairs = [(window, choice[:room]) for window in _windows(a, budget - room, stride) for choice in choices]
    return pairs, room < longest


def _windows(tokens: Ids, room: int, stride: int) -> Iterator[Ids]:
    last = len(tokens) - room
    if last <= 0:
        yield tokens
        return
    for start in (*range(0, last, min(stride, room)), last):
        yield tokens[start : start + room]


def shares(examples: np.ndarray) -> np.ndarray:
    """float32 [N]: how much each row counts, so that all examples count the same and the mean is 1.

    Args:
      examples: int64 [N], the example of each row, from 0, ascending.
    """
    counts = np.bincount(examples)
    return (len(examples) / (max(1, len(counts)) * counts[examples])).astype(np.float32)


def first_rows(examples: np.ndarray) -> np.ndarray:
    """int64 [examples]: the first row of each; `examples` as in `shares`."""
    return np.flatnonzero(np.diff(examples, prepend=-1))


def join(outputs: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """float32 [N, C] of rows -> [examples, C]: the means over each one's rows; `examples` as in `shares`."""
    counts = np.bincount(examples).astype(np.float32)
    return np.add.reduceat(outputs, first_rows(examples), axis=0) / counts[:, None]


def describe(examples: np.ndarray, cut: int, what: str = "the shorter text") -> str:
    """How many examples have how many windows; `examples` as in `shares`, of which `cut` lost tokens of
    `what`.
    """
    numbers, found = np.unique(np.bincount(examples), return_counts=True)
    parts = [f"{count:,} in {n}" for n, count in zip(numbers, found, strict=True)][:_MOST_SHOWN]
    if rest := numbers[_MOST_SHOWN:].tolist():
        parts.append(f"{found[_MOST_SHOWN:].sum():,} in {rest[0]}" + (f" to {rest[-1]}" if rest[1:] else ""))
    of_cut = f"; {what} cut in {cut:,}" if cut else ""
    return f"{len(examples):,} windows (examples: {', '.join(parts)}{of_cut})"
