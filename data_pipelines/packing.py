"""Several short sequences a row: best fit by decreasing length, inside a bounded window."""

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
    """Packs sequences into rows, each sequence once, at most `max_sequences` and `max_seq_length` tokens a
    row.

    Args:
        rng: shuffles the rows of a window, which are otherwise in the order of their longest sequence.
        window: sequences that are packed together; of rows that come out less than 98% full, up to half a
            window of sequences waits for the next one.
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
        for row in reversed(sparse):  # the emptiest rows are made last
            if len(waiting) + len(row) <= window // 2:
                waiting.extend(row)
            else:
                full.append(row)
        rng.shuffle(full)
        yield from full
        if last:
            return
