"""Encoded examples and their batches, which are a pure function of (seed, step); only numpy is used.

The rows of a batch have similar lengths and are padded to one of a few lengths, which are few programs.
"""

import dataclasses
import functools
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np

# Examples are sorted by length within windows of this many batches, so that the order stays mostly random.
_GROUPING_WINDOW = 32
_MAX_BUCKETS = 8
_SIZE_SAVES = 0.03

NO_TARGET = -1  # the target of a token or row without a target


@dataclasses.dataclass(kw_only=True)
class EncodedRows:
    """The rows of a data set, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], concatenated.

    A group is the `rows_per_example` consecutive rows of one question. The rows of a group are always in the
    same batch.

    Attributes:
        tokens: int32 [total], the tokens of all rows.
        offsets: int64 [N + 1]; row i is tokens[offsets[i]:offsets[i + 1]].
        first_lengths: int32 [N], the number of tokens of A, including its special tokens.
        targets: arrays [N, ...] by name, int32 or float32; empty if the examples have no labels.
        truncated: the number of examples that were truncated.
        token_targets: int32 [total] arrays by name; `NO_TARGET` for a token without a target.
        examples: int64 [N], the example of each row; a long example may have several rows.
        rows_per_example: the number of rows of a group.
        token_features: float arrays [total, F] by name, computed once for all epochs.
        row_weights: float32 [N], the weight of each row in the loss, with mean 1, if rows are windows whose
            outputs are averaged for each example; otherwise None.
        least_groups: the minimum number of groups in a useful batch: 2 if the loss compares a group only with
            the others of its batch.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    targets: dict[str, np.ndarray]
    pad_id: int
    max_seq_length: int
    truncated: int = 0
    token_targets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    examples: np.ndarray
    rows_per_example: int = 1
    token_features: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    row_weights: np.ndarray | None = None
    least_groups: int = 1

    def __len__(self) -> int:
        return len(self.first_lengths)

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        """Returns the number of tokens of each row, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def group_lengths(self) -> np.ndarray:
        """Returns the number of tokens of the longest row of each group, int64 [groups]."""
        return self.lengths.reshape(-1, self.rows_per_example).max(axis=1, initial=0)

    @property
    def first_rows(self) -> np.ndarray:
        """Returns the first row of each example, int64 [examples]."""
        return np.flatnonzero(np.diff(self.examples, prepend=-1))

    def example_targets(self) -> np.ndarray:
        """Returns the targets of the examples, [examples, ...]; empty if they have no labels."""
        if not self.targets:
            return np.empty(0)
        return self.targets["targets"][self.first_rows]

    def compared(self, outputs: np.ndarray) -> tuple[np.ndarray, Any]:
        """Returns the outputs of `predict_all` and their targets in the format of `evaluation_loss`."""
        return outputs, self.example_targets()


def bucket_lengths(
    lengths: np.ndarray,
    batch_size: int,
    max_seq_length: int,
    batches: int | None = None,
    least: float = 0.0,
) -> tuple[int, ...]:
    """Returns the padded lengths that waste the fewest tokens on padding, ascending.

    They are multiples of 8, or `max_seq_length`. Each length needs a compilation, so there is at most one
    more for every eight batches, if it saves at least `least` padded tokens and 3% of all. `lengths`, int
    [N], are of the longest row of each group, a batch has `batch_size` groups, and `batches` is the number of
    batches that will be computed, if fewer than an epoch.
    """
    longest = int(np.max(lengths, initial=1))
    candidates = np.minimum(np.arange(8, longest + 8, 8), max_seq_length)
    computed = steps_per_epoch(len(lengths), batch_size)
    computed = computed if batches is None else min(computed, batches)
    return choose_sizes(lengths, candidates, min(_MAX_BUCKETS, 1 + computed // 8), least)


def choose_sizes(values: np.ndarray, candidates: np.ndarray, most: int, least: float) -> tuple[int, ...]:
    """Chooses up to `most` candidates that minimize the total if each value is rounded up to the next one.

    A size is added only if it saves at least `least` and 3% of the total. The result is ascending and always
    contains the last candidate, which no value exceeds.
    """
    counts = np.bincount(np.searchsorted(candidates, values), minlength=len(candidates))
    below = np.concatenate([[0], np.cumsum(counts)])
    # cost[i, j] is the total size of the values above candidate i - 1 and up to candidate j, if each is
    # rounded up to candidate j.
    numbers = np.arange(len(candidates))
    cost = np.where(numbers[:, None] <= numbers, (below[None, 1:] - below[:-1, None]) * candidates, np.inf)
    best, chosen = cost[0], [(int(candidate),) for candidate in candidates]
    for _ in range(1, min(most, len(candidates))):
        # totals[i, j] is the cost of the values up to candidate j if the last two sizes are candidates i, j.
        totals = best[:-1, None] + cost[1:]
        last = np.argmin(totals, axis=0)
        fewer = best[-1]
        best = np.min(totals, axis=0)
        if best[-1] > min((1 - _SIZE_SAVES) * fewer, fewer - least):
            break
        chosen = [(*chosen[i], int(candidates[j])) for j, i in enumerate(last)]
    return chosen[-1]


def make_batch(
    data: EncodedRows, indices: np.ndarray, buckets: Sequence[int], local_rows: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns one batch, with its rows padded to the smallest bucket that holds the longest row.

    Args:
        data: the encoded rows.
        indices: int64 [B], the groups of the global batch; -1 for padding, which has weight 0.
        buckets: the lengths that rows can be padded to, ascending.
        local_rows: int [b], the positions in the global batch of the groups that this process feeds. The
            padded length depends on the global batch, so it is the same on every process.

    Returns:
        int32 `input_ids` [b, L], `lengths` [b], `first_lengths` [b] and `row_ids` [b], the positions in the
            global batch; float32 `weights` [b], and `row_weights` [b] if `data` has them; every target [b,
            ...], which is 0 for padding; every token target, int32 [b, L]; and every token feature [b, L, F].
            If groups have several rows, each array has the shape [b, rows of a group, ...].
    """
    places = expand(np.arange(len(indices)) if local_rows is None else local_rows, data.rows_per_example)
    indices = expand(indices, data.rows_per_example)
    real = indices >= 0
    lengths = np.where(real, data.lengths[indices], 0)
    width = next(length for length in buckets if length >= lengths.max(initial=0))
    indices, real, lengths = indices[places], real[places], lengths[places]

    def padded(values: np.ndarray, filling: int) -> np.ndarray:
        rows = np.full((len(indices), width, *values.shape[1:]), filling, values.dtype)
        for row, start, length in zip(rows, data.offsets[indices], lengths, strict=True):
            row[:length] = values[start : start + length]
        return rows

    batch = {
        "input_ids": padded(data.tokens, data.pad_id),
        "lengths": lengths.astype(np.int32),
        "first_lengths": np.where(real, data.first_lengths[indices], 0).astype(np.int32),
        "row_ids": places.astype(np.int32),
        "weights": real.astype(np.float32),
    }
    if data.row_weights is not None:
        batch["row_weights"] = np.where(real, data.row_weights[indices], np.float32(0))
    for name, values in data.targets.items():
        batch[name] = values[indices]
        batch[name][~real] = 0
    batch |= {name: padded(values, NO_TARGET) for name, values in data.token_targets.items()}
    batch |= {name: padded(values, 0) for name, values in data.token_features.items()}
    if data.rows_per_example > 1:
        batch = {name: x.reshape(-1, data.rows_per_example, *x.shape[1:]) for name, x in batch.items()}
    return batch


def expand(groups: np.ndarray, size: int) -> np.ndarray:
    """Converts group numbers, int64 [B], to row numbers, int64 [B * size]; -1 is padding."""
    rows = groups[:, None] * size + np.arange(size)
    return np.where(groups[:, None] >= 0, rows, -1).ravel()


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Returns the number of batches per epoch; the last batch may contain padding."""
    return -(-examples // batch_size)


def epoch_order(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, group_by_length: bool = True, least: int = 1
) -> np.ndarray:
    """Returns the order of the examples in an epoch, int64 [steps, batch_size], -1 for padding.

    If the last batch has fewer than `least` examples, it also gets some from the first batch. With
    `group_by_length`, shuffled examples are sorted by length within windows of 32 batches, which are
    shuffled.
    """
    rng = np.random.Generator(np.random.Philox(key=[np.uint64(seed), np.uint64(epoch)]))
    order = rng.permutation(len(lengths))
    if group_by_length:
        window = batch_size * _GROUPING_WINDOW
        parts = np.split(order, range(window, len(order), window))
        order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    last = len(order) % batch_size
    if 0 < last < least and len(order) > batch_size:
        order = np.concatenate([order, order[: least - last]])
    order = _in_batches(order, batch_size)
    return rng.permutation(order) if group_by_length else order


def _in_batches(order: np.ndarray, batch_size: int) -> np.ndarray:
    padding = np.full(-len(order) % batch_size, -1)
    return np.concatenate([order, padding]).reshape(-1, batch_size)


def orders_from(
    data: EncodedRows, batch_size: int, seed: int, start_step: int, group_by_length: bool
) -> Iterator[np.ndarray]:
    """Yields the groups of each batch, int64 [batch_size], without end, from `start_step` on."""
    lengths = data.group_lengths
    first, offset = divmod(start_step, steps_per_epoch(len(lengths), batch_size))
    for epoch in itertools.count(first):
        order = epoch_order(lengths, batch_size, seed, epoch, group_by_length, data.least_groups)
        yield from order[offset:]
        offset = 0


def train_batches(
    data: EncodedRows,
    batch_size: int,
    seed: int,
    start_step: int,
    *,
    group_by_length: bool = True,
    buckets: Sequence[int] = (),
    local_rows: np.ndarray | None = None,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yields training batches of `batch_size` groups without end, from step `start_step` on.

    The batch of step s depends only on the data, the seed and s.
    """
    buckets = buckets or bucket_lengths(data.group_lengths, batch_size, data.max_seq_length)
    for indices in orders_from(data, batch_size, seed, start_step, group_by_length):
        yield make_batch(data, indices, buckets, local_rows)


def eval_order(data: EncodedRows, batch_size: int) -> np.ndarray:
    """Returns the groups sorted by length, int64 [steps, batch_size], with -1 for padding at the end."""
    return _in_batches(np.argsort(data.group_lengths, kind="stable"), batch_size)
