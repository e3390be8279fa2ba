"""Which sequences share a row: best fit by decreasing length."""

from __future__ import annotations

from collections.abc import Sequence


def best_fit(lengths: Sequence[int], capacity: int, most: int) -> list[list[int]]:
    """Puts each sequence, the longest first, into the row with the least room that takes it.

    Args:
      lengths: tokens of each sequence, at most `capacity`.
      capacity: tokens that a row holds.
      most: sequences that a row holds.

    Returns:
      For each row the places in `lengths` of its sequences; each is in one row.
    """
    rows: list[list[int]] = []
    by_room: list[list[list[int]]] = [[] for _ in range(capacity + 1)]
    occupied = 0  # bit r is set while by_room[r] is not empty
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
