"""The shapes of batches of texts: few of them, because each is compiled."""

from __future__ import annotations

import itertools

import jax

from bert_jax.parallel import row_parts

# Tokens of the shortest rows. On CPUs, half of the tokens of a file of titles were padding with 16, as on
# accelerators, where a program takes longer to compile and a token less to compute. Of programs that are
# compiled in advance, in several sizes of batches, the shortest rows have twice as many.
_CPU_SHORTEST, _ACCELERATOR_SHORTEST = 8, 16


def shortest_length(mesh: jax.sharding.Mesh) -> int:
    """Returns the least padded length that suits the devices."""
    return _ACCELERATOR_SHORTEST if row_parts.tokens_at_a_time(mesh) is None else _CPU_SHORTEST


def padded_lengths(longest: int, shortest: int = _ACCELERATOR_SHORTEST) -> list[int]:
    """Returns the padded lengths 16, 24, 32, 48, 64, 96, ..., `longest`, if `shortest` is 16.

    These are few shapes to compile, with less padding than powers of two.

    Args:
        longest: the maximum number of tokens of a row.
        shortest: the least padded length, a power of two.
    """
    lengths = (length << power for power in itertools.count() for length in (shortest, shortest * 3 // 2))
    return [*itertools.takewhile(lambda length: length < longest, lengths), longest]


def few_lengths(longest: int, mesh: jax.sharding.Mesh) -> list[int]:
    """Returns the padded lengths of rows whose programs are compiled in advance.

    They are 16 on CPUs or 32 on accelerators, twice as many, ..., `longest`. A search query of 6 tokens takes
    a quarter less of a CPU's time with 16 than with 32.
    """
    return _powers(2 * shortest_length(mesh), 2, longest)


def few_sizes(most: int, devices: int) -> list[int]:
    """Returns the padded sizes of batches of at most `most` rows, whose programs are compiled in advance.

    They are 1, 4, 16, ... rows of each device. Powers of 2 would take 1.5 times as long to compile.
    """
    return [devices * size for size in _powers(1, 4, -(-most // devices))]


def _powers(first: int, factor: int, last: int) -> list[int]:
    """Returns first, first x factor, first x factor^2, ... while they are less than `last`, and `last`."""
    found = []
    while first < last:
        found.append(first)
        first *= factor
    return [*found, last]
