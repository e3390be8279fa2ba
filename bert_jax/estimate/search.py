"""The largest batch that fits, in few compilations."""

from __future__ import annotations

from collections.abc import Callable

# Within an eighth: every further compilation would be for a batch that hardly differs.
_NEAR = 8

_MOST = 2**16


def largest_fitting(fits: Callable[[int], bool], start: int) -> int:
    """The largest n found for which `fits(n)`, to within an eighth; 0 where not even 1 does.

    Doubles from `start` until it does not fit, or halves until it does, then bisects.

    Args:
        fits: true up to some number, and false from there on; asked once about each number.
        start: at least 1.
    """
    known: dict[int, bool] = {}

    def ask(n: int) -> bool:
        if n not in known:
            known[n] = fits(n)
        return known[n]

    low = high = start
    if ask(start):
        while ask(high) and high < _MOST:
            low, high = high, 2 * high
        if ask(high):
            return high
    else:
        while low > 1 and not ask(low):
            low, high = low // 2, low
        if not ask(low):
            return 0
    while high - low > max(1, low // _NEAR):
        middle = (low + high) // 2
        if ask(middle):
            low = middle
        else:
            high = middle
    return low
