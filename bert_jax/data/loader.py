"""Reads host batches from records: row i of step s is a pure function of (seed, s, i).

There is no iterator state to save.

Row i of step s has the global position b(s) + i, where b(s) is the number of rows of all batches before step
s: s * B if each has B rows. These positions run through epochs of n rows. Each epoch visits every row once,
in its own random order, which is computed and never stored. A process reads only the rows of the global batch
that its devices hold, so the batches are the same for any number of processes and after any restart.

A fraction of the positions may be replay: rows of other records (`Replay`). Replay positions and all others
are numbered separately, and have separate epochs.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from bert_jax.data.rows import Dataset
from bert_jax.settings.pretrain_config import Ramp

_ROUNDS = 6
_THREADS = 2
_REMOTE_BATCHES = 16  # read at the same time from an object store: each waits for its slowest row


def _mix(value: np.ndarray) -> np.ndarray:
    """Applies the finalizer of splitmix64 (Steele, Lea and Flood 2014), a bijection on uint64."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def permute(index: np.ndarray, n: int, seed: int, epoch: int) -> np.ndarray:
    """Permutes int64 [...] in [0, n) pseudo-randomly, keyed by (seed, epoch), without a table.

    The permutation is a Feistel network on the smallest even number of bits that can represent all of [0, n).
    It is applied repeatedly until the value is inside [0, n) (cycle walking).
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


def _rows(positions: np.ndarray, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the row indices of positions in epochs of n rows, and their epochs, int64 [B] each."""
    epochs, inside = np.divmod(positions, n)
    rows = np.empty(len(epochs), np.int64)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        rows[chosen] = permute(inside[chosen], n, seed, epoch)
    return rows, epochs


@dataclasses.dataclass(frozen=True)
class Replay:
    """Records that provide the fraction `share` of the rows of every batch, above 0 and below 1."""

    dataset: Dataset
    share: Fraction


def replayed_before(position: np.ndarray | int, share: Fraction) -> Any:
    """Returns how many of the global positions before a position are replay: floor(position * share)."""
    return position * share.numerator // share.denominator


def divide(positions: np.ndarray, share: Fraction) -> tuple[np.ndarray, np.ndarray]:
    """Divides global positions, int64 [B], into replay and all others, and numbers both from 0.

    A position p is replay if floor((p + 1) share) > floor(p share), so the first n positions contain
    floor(n share) replay positions, for any n. Returns whether each position is replay, bool [B], and its
    number among positions of the same kind, int64 [B].
    """
    before = replayed_before(positions, share)
    is_replay = replayed_before(positions + 1, share) > before
    return is_replay, np.where(is_replay, before, positions - before)


def replay_seed(seed: int) -> int:
    """Returns the seed for the order and the masks of replay in a run with this seed."""
    return int(_mix(np.array([seed % (1 << 64)], np.uint64) ^ np.uint64(0x7265706C6179))[0])


def mask_keys(rows: np.ndarray, copies: np.ndarray, seed: int) -> np.ndarray:
    """Returns the key of the masks of each row, a function of the row, its copy and the seed alone.

    `rows` are the numbers of the rows in the data set, and `copies` of the set of masks that each gets, int64
    [B]. The result, uint32 [B, 2], is the data of Threefry keys, which differ between the rows of a copy.
    """
    key = _mix(np.array([seed % (1 << 64)], np.uint64) ^ np.uint64(0x6D61736B73))
    keys = _mix(key + np.asarray(copies, np.uint64))
    keys = _mix(keys + np.asarray(rows, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return np.stack((keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)), axis=1).astype(np.uint32)


def train_batches(
    dataset: Dataset,
    batch_size: int | Ramp,
    seed: int,
    start_step: int,
    own: np.ndarray | Callable[[int], np.ndarray] | None = None,
    prefetch: int = 4,
    mask_copies: int = 0,
    marks: Mapping[str, Ramp] | None = None,
    replay: Replay | None = None,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Returns an endless iterator over this process's rows of each global training batch.

    Args:
        dataset: the rows.
        batch_size: the size of the global batch, of every step or by step.
        seed: the seed of the order of the rows.
        start_step: the step of the first batch.
        own: int [b], the positions in the global batch that this process feeds, or a function that maps the
            size of a batch to them; None for all of them.
        prefetch: the number of batches that threads assemble ahead, at least 16 from an object store.
        mask_copies: the number of sets of masks that each row has. If it is not 0, batches have the entry
            `mask_keys`, uint32 [b, 2]: in epoch e, the key of set e mod `mask_copies` of each row.
        marks: {name: 0 or 1 by step}; batches of the steps with 1 have an int32 [b] entry of this name.
        replay: records with batches of the same shapes that provide a fraction of the rows of each batch.

    Returns:
        An iterator over batches as `Dataset.batch` returns them, in which `row_ids` are the positions of the
        rows in the global batch. Its `close()` ends the threads.
    """
    sizes = batch_size if isinstance(batch_size, Ramp) else Ramp.constant(batch_size)
    own = np.arange if own is None else own

    def read(dataset: Dataset, numbers: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        rows, epochs = _rows(numbers, len(dataset), seed)
        batch = dataset.batch(rows)
        return batch | ({"mask_keys": mask_keys(rows, epochs % mask_copies, seed)} if mask_copies else {})

    def assemble(step: int) -> dict[str, np.ndarray]:
        positions = sizes.total_before(step) + np.arange(sizes.at(step), dtype=np.int64)
        here = own(len(positions)) if callable(own) else own
        if replay is None:
            batch = read(dataset, positions[here], seed)
        else:
            is_replay, numbers = divide(positions[here], replay.share)
            batch = _joined(
                (~is_replay, read(dataset, numbers[~is_replay], seed)),
                (is_replay, read(replay.dataset, numbers[is_replay], replay_seed(seed))),
            )
        marked = [name for name, steps in (marks or {}).items() if steps.at(step)]
        ones = {name: np.ones(len(here), np.int32) for name in marked}
        return batch | {"row_ids": here.astype(np.int32)} | ones

    is_remote = dataset.is_remote or (replay is not None and replay.dataset.is_remote)
    return _prefetched(assemble, itertools.count(start_step), prefetch, is_remote)


def _joined(*parts: tuple[np.ndarray, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Returns one batch of (bool [B], batch) parts: each part has the rows where its bool is True."""
    order = np.argsort(np.concatenate([np.flatnonzero(chosen) for chosen, _ in parts]))
    return {name: np.concatenate([part[name] for _, part in parts])[order] for name in parts[0][1]}


def eval_batches(
    dataset: Dataset,
    batch_size: int,
    own: np.ndarray | None = None,
    max_batches: int = 0,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Returns an iterator over batches that visits every row once, in order.

    Every process gets the same number of batches of the same shape, at most `max_batches` unless it is 0: the
    last batch is completed with rows of padding. For `own`, see `train_batches`.
    """
    own = np.arange(batch_size) if own is None else own
    batches = -(-len(dataset) // batch_size)
    if max_batches:
        batches = min(batches, max_batches)

    def assemble(number: int) -> dict[str, np.ndarray]:
        rows = number * batch_size + own
        batch = dataset.batch(np.where(rows < len(dataset), rows, -1))
        return batch | {"row_ids": own.astype(np.int32)}

    return _prefetched(assemble, range(batches), 2, dataset.is_remote)


def _prefetched(
    assemble: Callable[[int], dict[str, np.ndarray]], steps: Iterable[int], prefetch: int, is_remote: bool
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yields `map(assemble, steps)` in order, while threads assemble up to `prefetch` results ahead."""
    if prefetch <= 0:
        yield from map(assemble, steps)
        return
    steps = iter(steps)
    prefetch = max(prefetch, _REMOTE_BATCHES * is_remote)
    threads = prefetch if is_remote else min(prefetch, _THREADS)
    executor = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="bert_jax-loader")
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
