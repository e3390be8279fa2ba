"""Estimates how many items of a stream are repeats, in bounded memory."""

from __future__ import annotations

import hashlib

_MOST_HASHES = 1 << 20


class DistinctSample:
    """Counts the repeats in a stream of any length from the hashes of a sample of its distinct items.

    An item is in the sample if its hash starts with `halvings` zero bits, so either all or none of its copies
    are. The memory is about 100 MB at most.
    """

    def __init__(self, most: int = _MOST_HASHES):
        self._most = most
        self._counts: dict[int, int] = {}
        self.halvings = 0

    def add(self, thing: bytes) -> None:
        """Counts an item."""
        value = int.from_bytes(hashlib.blake2b(thing, digest_size=8).digest(), "big")
        if value >> (64 - self.halvings):
            return
        self._counts[value] = self._counts.get(value, 0) + 1
        while len(self._counts) > self._most:
            self.halvings += 1
            kept = 64 - self.halvings
            self._counts = {value: count for value, count in self._counts.items() if not value >> kept}

    def repeats(self) -> int:
        """Returns the number of items that repeat an earlier one.

        It is exact while `halvings` is 0, and an estimate afterwards.
        """
        return (sum(self._counts.values()) - len(self._counts)) << self.halvings

    def repeated_share(self) -> float:
        """Returns the share of all items that repeat an earlier one."""
        total = sum(self._counts.values())
        return (total - len(self._counts)) / total if total else 0.0

    def how_estimated(self) -> str:
        """Returns a description of the sample if the numbers are estimates, or "" if they are exact."""
        return f"from one in {1 << self.halvings} of the distinct ones" if self.halvings else ""
