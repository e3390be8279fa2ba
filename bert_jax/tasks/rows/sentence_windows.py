"""Rows for sentences of words: windows of those too long, and context around those that are not.

Everything is counted in words; `offsets` int64 [words + 1] are the sums of their word-pieces.
"""

from __future__ import annotations

import numpy as np


def split(offsets: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Windows [begin, end) of at most `budget` word-pieces, in order, that cover all words.

    One after the other begins half a budget further on; the last one is as long as it can be. No word may
    have more pieces than the budget.
    """
    words = len(offsets) - 1
    if offsets[-1] - offsets[0] <= budget:
        return [(0, words)]
    found, begin = [], 0
    while True:
        end = int(np.searchsorted(offsets, offsets[begin] + budget, side="right")) - 1
        if end == words:
            begin = int(np.searchsorted(offsets, offsets[-1] - budget))
            return [*found, (begin, words)]
        found.append((begin, end))
        following = int(np.searchsorted(offsets, offsets[begin] + max(budget // 2, 1)))
        begin = min(max(following, begin + 1), end)


def choose(offsets: np.ndarray, windows: list[tuple[int, int]]) -> np.ndarray:
    """int64 [words]: the window in which each word has most context, the lesser of both sides counting; the
    first of equal ones (google-research/bert, run_squad.py: max context).
    """
    words = len(offsets) - 1
    context = np.full((len(windows), words), -1, np.int64)
    for row, (begin, end) in enumerate(windows):
        left = offsets[begin:end] - offsets[begin]
        right = offsets[end] - offsets[begin + 1 : end + 1]
        context[row, begin:end] = np.minimum(left, right)
    return np.argmax(context, axis=0)


def widen(offsets: np.ndarray, begin: int, end: int, budget: int) -> tuple[int, int]:
    """The words [begin, end) with as many around them as fit: the same on both sides, and what one side has
    not, the other gets.
    """
    spare = budget - (offsets[end] - offsets[begin])
    before, after = offsets[begin] - offsets[0], offsets[-1] - offsets[end]
    left = min(before, max(spare // 2, spare - after))
    right = min(after, spare - left)
    first = int(np.searchsorted(offsets, offsets[begin] - left))
    last = int(np.searchsorted(offsets, offsets[end] + right, side="right")) - 1
    return first, last
