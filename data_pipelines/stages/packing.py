"""Packs short sequences into rows, with the best-fit-decreasing algorithm in a bounded window."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

from bert_jax.data.best_fit import best_fit
from bert_jax.data.packed import PackedSequence

WINDOW = 1 << 15
_FULL_ENOUGH = 0.98


def pack(
    sequences: Iterable[PackedSequence],
    max_seq_length: int,
    max_sequences: int,
    rng: random.Random,
    window: int = WINDOW,
) -> Iterator[list[PackedSequence]]:
    """Packs each sequence into exactly one row.

    Args:
        sequences: the sequences, each of at most `max_seq_length` tokens.
        max_seq_length: the maximum number of tokens in a row.
        max_sequences: the maximum number of sequences in a row.
        rng: shuffles the rows of a window, which would otherwise be sorted by their longest sequence.
        window: the number of sequences that are packed together. Up to half as many sequences, from rows that
            are less than 98% full, are packed again in the next window.

    Yields:
        The sequences of each row.
    """
    sequences = iter(sequences)
    waiting: list[PackedSequence] = []
    while True:
        taken = list(itertools.islice(sequences, window))
        last = len(taken) < window
        full: list[list[PackedSequence]] = []
        sparse: list[list[PackedSequence]] = []
        held = waiting + taken
        for places in best_fit([len(sequence.ids) for sequence in held], max_seq_length, max_sequences):
            row = [held[place] for place in places]
            tokens = sum(len(sequence.ids) for sequence in row)
            (full if last or tokens >= _FULL_ENOUGH * max_seq_length else sparse).append(row)
        waiting = []
        for row in reversed(sparse):  # the rows packed last are the emptiest
            if len(waiting) + len(row) <= window // 2:
                waiting.extend(row)
            else:
                full.append(row)
        rng.shuffle(full)
        yield from full
        if last:
            return
