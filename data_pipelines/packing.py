"""Several short sequences a row: best fit by decreasing length, inside a bounded window."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

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
    sequences, waiting = iter(sequences), []
    while True:
        taken = list(itertools.islice(sequences, window))
        last = len(taken) < window
        full, sparse = [], []
        for row in _best_fit(waiting + taken, max_seq_length, max_sequences):
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


def _best_fit(
    sequences: list[PackedSequence], max_seq_length: int, max_sequences: int
) -> list[list[PackedSequence]]:
    """Puts each sequence, the longest first, into the row with the least room that takes it."""
    rows: list[list[PackedSequence]] = []
    by_room: list[list[list[PackedSequence]]] = [[] for _ in range(max_seq_length + 1)]
    occupied = 0  # bit r is set while by_room[r] is not empty
    for sequence in sorted(sequences, key=lambda sequence: -len(sequence.ids)):
        size = len(sequence.ids)
        fitting = occupied >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                occupied &= ~(1 << room)
        else:
            room, row = max_seq_length, []
            rows.append(row)
        row.append(sequence)
        if len(row) < max_sequences and room > size:
            by_room[room - size].append(row)
            occupied |= 1 << (room - size)
    return rows
