"""Packs sequences into rows with the best-fit-decreasing algorithm."""

from __future__ import annotations

from collections.abc import Sequence


def best_fit(lengths: Sequence[int], capacity: int, most: int) -> list[list[int]]:
    """Assigns each sequence, longest first, to the fullest row that has room for it.

    Args:
        lengths: the number of tokens of each sequence, at most `capacity`.
        capacity: the maximum number of tokens in a row.
        most: the maximum number of sequences in a row.

    Returns:
        For each row, the indices of its sequences in `lengths`; each sequence is in exactly one row.
    """
    rows: list[list[int]] = []
    by_room: list[list[list[int]]] = [[] for _ in range(capacity + 1)]
    occupied = 0  # bit r is set if by_room[r] is not empty
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        size = lengths[place]
        fitting = occupied >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                occupied &= ~(1 << room)
        else:
            room, row = capacity, []
            rows.append(row)
        row.append(place)
        if len(row) < most and room > size:
            by_room[room - size].append(row)
            occupied |= 1 << (room - size)
    return rows
