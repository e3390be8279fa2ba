"""From records to host batches: row i of step s is a pure function of (seed, s, i).

There is no iterator state to save.

Global positions s * B + i run through epochs of n rows; each epoch visits every row once, in an order of its
own that is computed and never stored. A process reads the rows of the global batch that its devices hold, so
any number of processes, and any restart, sees the same batches.
"""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_jax.data.records import Dataset
from bert_jax.data.tfrecord import CorruptRecordError

_ROUNDS = 6
_THREADS = 2


def _mix(value: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014), a bijection on uint64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def permute(index: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """A bijection on [0, n) keyed by (seed, epoch), computed without a table.

    A Feistel network on the smallest even number of bits that holds n, walked until it is back inside [0, n).

    Args:
        index: int64 [...], in [0, n).

    Returns:
        int64 [...], in [0, n).
    """
    half = np.uint64(max(1, (int(n - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    key = _mix(np.array([seed % (1 << 64)], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    key = _mix(key ^ np.uint64(epoch))
    keys = _mix(key + np.arange(1, _ROUNDS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    value = np.array(index, np.uint64, ndmin=1)
    outside = np.ones(value.shape, bool)
    while outside.any():
        left, right = value[outside] >> half, value[outside] & mask
        for round_key in keys:
            left, right = right, left ^ (_mix(right + round_key) & mask)
        value[outside] = (left << half) | right
        outside = value >= np.uint64(n)
    return value.astype(np.int64).reshape(np.shape(index))


def batch_indices(step: int, batch_size: int, n: int, seed: int) -> np.ndarray:
    """The rows of one step, int64 [batch_size]; a batch may cross the end of an epoch, or several."""
    positions = step * batch_size + np.arange(batch_size, dtype=np.int64)
    epochs, inside = np.divmod(positions, n)
    rows = np.empty(batch_size, np.int64)
    for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
        chosen = epochs == epoch
        rows[chosen] = permute(inside[chosen], n, seed, epoch)
    return rows


class CorruptRows:
    """A budget of corrupt rows: the row after a corrupt one is read in its place.

    A run over terabytes does not end at one flipped bit, and its batches are the same after a restart.

    Args:
        budget: distinct rows that may be corrupt; 0 for none.
        say: called with one line for each.
    """

    def __init__(self, budget: int, say: Callable[[str], None] = print):
        self._budget, self._say = budget, say
        self._found: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many there were so far."""
        return len(self._found)

    def batch(self, dataset: Dataset, indices: np.ndarray) -> dict[str, np.ndarray]:
        """`dataset.batch(indices)` with sound rows.

        Raises:
            CorruptRecordError: the first one over the budget.
        """
        try:
            return dataset.batch(indices)
        except CorruptRecordError:
            if not self._budget:
                raise
        return dataset.batch(np.array([self._sound(dataset, int(index)) for index in indices], np.int64))

    def _sound(self, dataset: Dataset, index: int) -> int:
        first = index
        while index >= 0:
            try:
                dataset.batch(np.array([index], np.int64))
                break
            except CorruptRecordError as error:
                self._count(error)
                index = (index + 1) % len(dataset)
                if index == first:  # a budget of more rows than there are would go round for ever
                    raise
        return index

    def _count(self, error: CorruptRecordError) -> None:
        place = error.path, error.offset  # the training and the evaluation set share a budget
        with self._lock:
            if place in self._found:
                return
            if len(self._found) >= self._budget:
                raise error
            self._found.add(place)
            self._say(
                f"warning: {error.path} is corrupt at byte {error.offset} ({error.reason}); the next row is "
                f"read in its place ({len(self._found)} of at most {self._budget})"
            )


def train_batches(
    dataset: Dataset,
    batch_size: int,
    seed: int,
    start_step: int,
    own: np.ndarray | None = None,
    prefetch: int = 4,
    corrupt: CorruptRows | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Endless batches from `start_step` on: this process's rows of each global batch of `batch_size`.

    Args:
        own: int [b], the places in the global batch that this process feeds (`sharding.local_rows`); all by
            default.
        prefetch: batches assembled ahead in threads; 0 assembles each when it is asked for.
        corrupt: the budget of corrupt rows; None for none.

    Returns:
        An iterator over what `PackedDataset.batch` returns, with `row_ids` the rows' places in the global
        batch. Its `close()` ends the threads.
    """
    own = np.arange(batch_size) if own is None else own
    corrupt = CorruptRows(0) if corrupt is None else corrupt

    def assemble(step: int) -> dict[str, np.ndarray]:
        rows = batch_indices(step, batch_size, len(dataset), seed)[own]
        return corrupt.batch(dataset, rows) | {"row_ids": own.astype(np.int32)}

    return _prefetched(assemble, itertools.count(start_step), prefetch)


def eval_batches(
    dataset: Dataset,
    batch_size: int,
    own: np.ndarray | None = None,
    max_batches: int = 0,
    corrupt: CorruptRows | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Every row once, in order (of the first `max_batches` batches, if that is not 0); `own` as above.

    Every process gets the same number of batches of the same shape: the last one is completed with rows of
    padding.
    """
    own = np.arange(batch_size) if own is None else own
    batches = -(-len(dataset) // batch_size)
    if max_batches:
        batches = min(batches, max_batches)
    corrupt = CorruptRows(0) if corrupt is None else corrupt

    def assemble(number: int) -> dict[str, np.ndarray]:
        rows = number * batch_size + own
        batch = corrupt.batch(dataset, np.where(rows < len(dataset), rows, -1))
        return batch | {"row_ids": own.astype(np.int32)}

    return _prefetched(assemble, range(batches), prefetch=2)


def _prefetched(
    assemble: Callable[[int], dict[str, np.ndarray]], steps: Iterable[int], prefetch: int
) -> Iterator[dict[str, np.ndarray]]:
    """`map(assemble, steps)`, in order, with up to `prefetch` results being assembled ahead."""
    if prefetch <= 0:
        yield from map(assemble, steps)
        return
    steps = iter(steps)
    executor = concurrent.futures.ThreadPoolExecutor(
        min(prefetch, _THREADS), thread_name_prefix="bert_jax-loader"
    )
    try:
        ahead = collections.deque(
            executor.submit(assemble, step) for step in itertools.islice(steps, prefetch)
        )
        while ahead:
            batch = ahead.popleft().result()
            ahead.extend(executor.submit(assemble, step) for step in itertools.islice(steps, 1))
            yield batch
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
