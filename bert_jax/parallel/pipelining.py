"""Overlaps computation on the devices with work on the host, in bounded device memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax

IN_FLIGHT = 2  # The number of outputs in device memory before the oldest is copied to the host.

Key = TypeVar("Key")


def computed(compute: Callable[[Any], Any], batches: Iterable[tuple[Key, Any]]) -> Iterator[tuple[Key, Any]]:
    """Yields the output of every batch in order, as an array, or a tree of arrays, on the host.

    The next batch is dispatched before the output of the previous one is copied to the host, so that the
    devices always have work. At most `IN_FLIGHT` outputs are in device memory at a time.

    Args:
        compute: dispatches a batch and returns its output without waiting for it.
        batches: (key, batch) pairs, which are read lazily.

    Yields:
        (key, output) pairs.
    """
    pending: deque[tuple[Key, Any]] = deque()
    for key, batch in batches:
        if len(pending) == IN_FLIGHT:
            done, output = pending.popleft()
            yield done, jax.device_get(output)
        pending.append((key, compute(batch)))
    while pending:
        done, output = pending.popleft()
        yield done, jax.device_get(output)
