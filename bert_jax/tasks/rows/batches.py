"""Encoded examples and the order they are seen in: numpy only, a pure function of (seed, step).

Rows of one batch are of similar length and are padded to one of a few lengths, so that short texts do not pay
for the longest one and the number of compiled shapes stays small.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

# Examples are grouped by length inside windows of this many batches, which leaves most of the order random.
_GROUPING_WINDOW = 32
_MAX_BUCKETS = 8
_SIZE_SAVES = 0.03

NO_TARGET = -1  # of a token or a row without a target


@dataclasses.dataclass(kw_only=True)
class EncodedRows:
    """The rows of a data set, [CLS] A [SEP] or [CLS] A [SEP] B [SEP], end to end.

    A group is the `rows_per_example` consecutive rows that form one question, which stay side by side in one
    batch.

    Attributes:
        tokens: int32 [total].
        offsets: int64 [N + 1]; row i is tokens[offsets[i]:offsets[i + 1]].
        first_lengths: int32 [N], tokens of A with [CLS] and [SEP].
        targets: arrays [N, ...] by name, int32 or float32; empty when unlabelled.
        pad_id: of the tokenizer.
        max_length: tokens of a row at most.
        truncated: examples that were cut.
        token_targets: int32 [total] arrays by name; `NO_TARGET` where a token has none.
        examples: int64 [N], the example of each row: a long example may have several rows.
        rows_per_example: rows of a group.
        token_features: float arrays [total, F] by name, computed once for all epochs.
        row_weights: float32 [N], the weight of each row in the loss, 1 on average, where rows are windows
            whose outputs become one output for each example; else None.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    targets: dict[str, np.ndarray]
    pad_id: int
    max_length: int
    truncated: int = 0
    token_targets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    examples: np.ndarray | None = None
    rows_per_example: int = 1
    token_features: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    row_weights: np.ndarray | None = None

    def __post_init__(self):
        if self.examples is None:
            self.examples = np.arange(len(self))

    def __len__(self) -> int:
        return len(self.first_lengths)

    @property
    def lengths(self) -> np.ndarray:
        """Returns int64 [N], the tokens of each row."""
        return np.diff(self.offsets)

    @property
    def group_examples(self) -> np.ndarray:
        """Returns int64 [groups], the example of each group."""
        return self.examples[:: self.rows_per_example]

    @property
    def group_lengths(self) -> np.ndarray:
        """Returns int64 [groups], the tokens of the longest row of each group."""
        return self.lengths.reshape(-1, self.rows_per_example).max(axis=1, initial=0)


def bucket_lengths(
    lengths: np.ndarray, batch_size: int, max_length: int, batches: int | None = None
) -> tuple[int, ...]:
    """Returns the padded lengths that waste least on rows of these lengths: multiples of 8, ascending.

    Each costs a compilation, so there is one more only where it saves 3% of the padded tokens, at most one
    for every eight batches, and eight in all.

    Args:
        lengths: int [N] tokens of each group of rows.
        batch_size: groups per batch.
        batches: how many batches will be computed, where that is less than an epoch.
        max_length: what no padded length exceeds, and no row.
    """
    longest = int(np.max(lengths, initial=1))
    candidates = np.minimum(np.arange(8, longest + 8, 8), max_length)
    computed = steps_per_epoch(len(lengths), batch_size)
    computed = computed if batches is None else min(computed, batches)
    return choose_sizes(lengths, candidates, min(_MAX_BUCKETS, 1 + computed // 8))


def choose_sizes(values: np.ndarray, candidates: np.ndarray, most: int) -> tuple[int, ...]:
    """The sizes that waste least on these values, each of which takes the next size that holds it.

    Args:
        values: int [N], none over the last candidate.
        candidates: int [C], ascending.
        most: how many sizes at most; there is one more only where it saves 3% of all.

    Returns:
        Some of the candidates, ascending, the last of them included.
    """
    counts = np.bincount(np.searchsorted(candidates, values), minlength=len(candidates))
    below = np.concatenate([[0], np.cumsum(counts)])
    # [i, j]: what the values over candidate i - 1 that fit in candidate j cost, each the size of j.
    cost = np.where(
        np.arange(len(candidates))[:, None] <= np.arange(len(candidates)),
        (below[None, 1:] - below[:-1, None]) * candidates,
        np.inf,
    )
    best, chosen = cost[0], [(int(candidate),) for candidate in candidates]
    for _ in range(1, min(most, len(candidates))):
        # Of the values up to candidate j: the last size begins after candidate i.
        totals = best[:-1, None] + cost[1:]
        last = np.argmin(totals, axis=0)
        fewer = best[-1]
        best = np.min(totals, axis=0)
        if best[-1] > (1 - _SIZE_SAVES) * fewer:
            break
        chosen = [(*chosen[i], int(candidates[j])) for j, i in enumerate(last)]
    return chosen[-1]


def make_batch(
    data: EncodedRows, indices: np.ndarray, buckets: Sequence[int], local_rows: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """The rows of one batch, padded to the first bucket that holds the longest of them.

    Args:
        indices: int64 [B] groups of the global batch; -1 is padding, without weight.
        local_rows: int [b], the places of the groups that this process feeds (`sharding.local_rows`); all by
            default. The padded length is the whole batch's on every process.

    Returns:
        int32 `input_ids` [b, L], `lengths` [b], `first_lengths` [b] and `row_ids` [b], the places in the
        global batch; float32 `weights` [b], and `row_weights` [b] where there are some; every target [b,
        ...], 0 where there is none, every target of tokens, int32 [b, L], and every feature of tokens [b, L,
        F]. With groups of several rows, [b, group, ...] of each.
    """
    places = expand(np.arange(len(indices)) if local_rows is None else local_rows, data.rows_per_example)
    indices = expand(indices, data.rows_per_example)
    real = indices >= 0
    lengths = np.where(real, data.lengths[indices], 0)
    width = next(length for length in buckets if length >= lengths.max(initial=0))
    indices, real, lengths = indices[places], real[places], lengths[places]
    input_ids = np.full((len(indices), width), data.pad_id, np.int32)
    for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
        start = data.offsets[index]
        input_ids[row, :length] = data.tokens[start : start + length]
    batch = {
        "input_ids": input_ids,
        "lengths": lengths.astype(np.int32),
        "first_lengths": np.where(real, data.first_lengths[indices], 0).astype(np.int32),
        "row_ids": places.astype(np.int32),
        "weights": real.astype(np.float32),
    }
    if data.row_weights is not None:
        batch["row_weights"] = np.where(real, data.row_weights[indices], np.float32(0))
    for name, values in data.targets.items():
        chosen = values[indices]
        chosen[~real] = 0
        batch[name] = chosen
    for name, values in data.token_targets.items():
        batch[name] = np.full((len(indices), width), NO_TARGET, np.int32)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            start = data.offsets[index]
            batch[name][row, :length] = values[start : start + length]
    for name, values in data.token_features.items():
        batch[name] = np.zeros((len(indices), width, values.shape[1]), values.dtype)
        for row, (index, length) in enumerate(zip(indices, lengths, strict=True)):
            start = data.offsets[index]
            batch[name][row, :length] = values[start : start + length]
    if data.rows_per_example > 1:
        batch = {name: x.reshape(-1, data.rows_per_example, *x.shape[1:]) for name, x in batch.items()}
    return batch


def expand(groups: np.ndarray, size: int) -> np.ndarray:
    """int64 [B] groups, -1 for padding -> [B * size] rows."""
    rows = groups[:, None] * size + np.arange(size)
    return np.where(groups[:, None] >= 0, rows, -1).ravel()


def steps_per_epoch(examples: int, batch_size: int) -> int:
    """Batches in which every example occurs once; the last may be filled up with padding rows."""
    return -(-examples // batch_size)


def epoch_order(
    lengths: np.ndarray, batch_size: int, seed: int, epoch: int, group_by_length: bool = True
) -> np.ndarray:
    """int64 [steps, batch_size]: every example once, -1 where the last batch has none left.

    With `group_by_length`, examples of similar length share a batch: a shuffle, a sort inside windows of a
    few batches, and a shuffle of the batches.
    """
    rng = np.random.Generator(np.random.Philox(key=[np.uint64(seed), np.uint64(epoch)]))
    order = rng.permutation(len(lengths))
    steps = steps_per_epoch(len(lengths), batch_size)
    if group_by_length:
        window = batch_size * _GROUPING_WINDOW
        order = np.concatenate(
            [
                part[np.argsort(lengths[part], kind="stable")]
                for part in np.split(order, range(window, len(order), window))
            ]
        )
    order = np.concatenate([order, np.full(steps * batch_size - len(order), -1)]).reshape(steps, batch_size)
    return rng.permutation(order) if group_by_length else order


def train_batches(
    data: EncodedRows,
    batch_size: int,
    seed: int,
    start_step: int,
    *,
    group_by_length: bool = True,
    buckets: Sequence[int] = (),
    local_rows: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Endless batches of `batch_size` groups from `start_step` on: batch s depends on (seed, s) alone. `own`
    as in `make_batch`.
    """
    lengths = data.group_lengths
    buckets = buckets or bucket_lengths(lengths, batch_size, data.max_length)
    steps = steps_per_epoch(len(lengths), batch_size)
    epoch, offset = divmod(start_step, steps)
    while True:
        order = epoch_order(lengths, batch_size, seed, epoch, group_by_length)
        for indices in order[offset:]:
            yield make_batch(data, indices, buckets, local_rows)
        epoch, offset = epoch + 1, 0


def eval_batches(
    data: EncodedRows,
    batch_size: int,
    *,
    buckets: Sequence[int] = (),
    local_rows: np.ndarray | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Every group once, in the order of `eval_order`; the last batch is filled up with padding."""
    buckets = buckets or bucket_lengths(data.group_lengths, batch_size, data.max_length)
    for indices in eval_order(data, batch_size):
        yield make_batch(data, indices, buckets, local_rows)


def eval_order(data: EncodedRows, batch_size: int) -> np.ndarray:
    """int64 [steps, batch_size]: the groups by length, -1 where the last batch has none left."""
    order = np.argsort(data.group_lengths, kind="stable")
    steps = steps_per_epoch(len(order), batch_size)
    return np.concatenate([order, np.full(steps * batch_size - len(order), -1)]).reshape(steps, batch_size)
