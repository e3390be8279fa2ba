"""Estimates how many items of a stream are repeats, in bounded memory."""

from __future__ import annotations

import hashlib

_MOST_HASHES = 1 << 20


class DistinctSample:
    """Counts the repeats in a stream of any length from the hashes of a sample of its distinct items.

    An item is in the sample if its hash starts with `halvings` zero bits, so either all or none of its copies
    are. The memory is about 200 MB at most, and 100 MB if few items repeat.
    """

    def __init__(self, most: int = _MOST_HASHES):
        self._most = most
        self._counts: dict[int, int] = {}
        self._sizes: dict[int, int] = {}  # of the items that have occurred again
        self._bytes = 0
        self.halvings = 0

    def add(self, thing: bytes) -> None:
        """Counts an item."""
        value = int.from_bytes(hashlib.blake2b(thing, digest_size=8).digest(), "big")
        self._bytes += len(thing)
        if value >> (64 - self.halvings):
            return
        if value in self._counts:
            self._sizes[value] = len(thing)
        self._counts[value] = self._counts.get(value, 0) + 1
        while len(self._counts) > self._most:
            self.halvings += 1
            kept = 64 - self.halvings
            self._counts = {value: count for value, count in self._counts.items() if not value >> kept}
            self._sizes = {value: size for value, size in self._sizes.items() if not value >> kept}

    def repeats(self) -> int:
        """Returns the number of items that repeat an earlier one.

        It is exact while `halvings` is 0, and an estimate afterwards.
        """
        return (sum(self._counts.values()) - len(self._counts)) << self.halvings

    def repeated_share(self) -> float:
        """Returns the share of all items that repeat an earlier one."""
        total = sum(self._counts.values())
        return (total - len(self._counts)) / total if total else 0.0

    def repeated_share_of_bytes(self) -> float:
        """Returns the share of the bytes of all items that are in items which repeat an earlier one."""
        repeated = sum((self._counts[value] - 1) * size for value, size in self._sizes.items())
        return (repeated << self.halvings) / self._bytes if self._bytes else 0.0

    def how_estimated(self) -> str:
        """Returns a description of the sample if the numbers are estimates, or "" if they are exact."""
        return f"from one in {1 << self.halvings} of the distinct ones" if self.halvings else ""
