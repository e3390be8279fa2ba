"""How rows are divided for the local attention of the Pallas kernel.

A row that does not fit into vector memory is computed in segments. The tokens at the ends of a segment also
attend to tokens of its neighbors, which are read a second time: its halos. The module does not import jax,
so that `dispatch` can use it.
"""

from __future__ import annotations

import dataclasses

# Number of queries of a block, which are along the lanes of a TPU's vector registers.
BLOCK = 128
# Number of tokens that the first key of a block of queries is a multiple of.
ALIGNED = 64
# Tokens of the longest row that is one segment, and of the longest of several segments: halos, float32 and
# the gradients of the segment before need a part of TPU v4's vector memory.
LONGEST, _LONGEST_OF_SEVERAL = 1024, 512
_LONGEST_WINDOW = 128  # of rows of several segments


@dataclasses.dataclass(frozen=True)
class Segments:
    """Segments of equal size.

    Attributes:
        size: tokens of a segment, a multiple of 128.
        count: segments of a row.
        halo: tokens before a segment and after it that its tokens may attend to, rounded up to what divides
            `size`; 0 if the row has one segment.
        reach: tokens before and after a block of queries that they may attend to, rounded up to a multiple
            of 64.
    """

    size: int
    count: int
    halo: int
    reach: int

    @property
    def extended(self) -> int:
        """Returns the number of tokens of a segment with its halos."""
        return self.size + 2 * self.halo

    @property
    def span(self) -> int:
        """Returns the number of keys that a block of queries is multiplied by."""
        return min(self.extended, BLOCK + 2 * self.reach)


def longest_window(length: int) -> int | None:
    """Returns the longest window for which rows of `length` tokens, a multiple of 128, can be divided.

    It is None if a row is one segment: any window can be. A long segment with larger halos does not fit into
    the vector memory of TPU v4.
    """
    size = _size(length)
    return None if size == length else min(_LONGEST_WINDOW, size // 2)


def divide(length: int, window: int) -> Segments:
    """Returns the segments of a row.

    Args:
        length: tokens of the row, a multiple of 128.
        window: a token attends to the tokens at most this far to each side; up to `longest_window`.
    """
    reach = -(-window // ALIGNED) * ALIGNED
    size = _size(length)
    if size == length:
        return Segments(size, 1, 0, reach)
    halo = next(halo for halo in range(reach, size + 1, ALIGNED) if not size % halo)
    return Segments(size, length // size, halo, reach)


def _size(length):
    longest = LONGEST if length <= LONGEST else _LONGEST_OF_SEVERAL
    return next(size for size in range(longest, 0, -BLOCK) if not length % size)
