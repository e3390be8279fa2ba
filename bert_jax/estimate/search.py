"""Finds the largest batch that fits, with few compilations."""

from __future__ import annotations

import functools
from collections.abc import Callable

# The result is accurate to one eighth: further compilations would be for batches that hardly differ.
_PARTS = 8

_LARGEST = 2**16


def largest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """Returns the largest n found for which `fits(n)`, to within an eighth; 0 if not even 1 fits.

    It doubles n from `start` until it does not fit, or halves it until it does, and then bisects.

    Args:
        fits: true up to some number and false above it; called once per number.
        start: first number to try, at least 1.
    """
    ask = functools.cache(fits)
    low = high = start
    if ask(start):
        while ask(high) and high < _LARGEST:
            low, high = high, 2 * high
        if ask(high):
            return high
    else:
        while low > 1 and not ask(low):
            low, high = low // 2, low
        if not ask(low):
            return 0
    while high - low > max(1, low // _PARTS):
        middle = (low + high) // 2
        if ask(middle):
            low = middle
        else:
            high = middle
    return low
