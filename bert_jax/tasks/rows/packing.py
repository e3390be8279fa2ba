"""Packs several short examples into each row, so that random batches and predictions need little padding.

Rows have the layout of packed pre-training rows (`bert_jax.data.packed`), with weights and targets for each
example. Only numpy is used. Batch s of a run is a pure function of (data, seed, s).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from bert_jax.data.packed import best_fit
from bert_jax.tasks.rows.batches import EncodedRows, bucket_lengths, choose_sizes, expand, orders_from

# The plan samples batches with a fixed seed instead of the run's, so that runs with different seeds share
# their compiled shapes.
_PLAN_SEED = 0
_TRIED_BATCHES = 32
# Number of sampled batches per batch of the run, large enough that few runs compile again for a batch with
# more rows than any sample. The limits on batches and examples keep the time below a second.
_COUNTED, _COUNTED_BATCHES, _COUNTED_EXAMPLES = 16, 2000, 250_000
_STEPS_A_SHAPE, _MOST_SHAPES = 100, 4
# Random batches are preferred up to this ratio of FLOPs to batches sorted by length, because sorted batches
# are biased samples.
_DEARER = 1.1
# Prediction rows have few lengths, the same for every file, so that files share compiled programs. Shorter
# rows than this would be harder to fill.
_SHORTEST_ROW = 128
_LEAST_TOKENS = 4  # minimum mean number of tokens per example in a full row
_FULL = 0.97  # fraction of a row's tokens that is filled if there are many short examples


@dataclasses.dataclass(frozen=True)
class Packing:
    """The shapes of packed batches.

    Attributes:
        length: the number of tokens of a row.
        sequences: the maximum number of examples in a row.
        rows: the possible numbers of rows of a batch, ascending. A batch that needs more rows than the last
            one gets the next multiple of `multiple`.
        multiple: a divisor of every number of rows.
        mean_rows: the mean number of rows of the sampled batches.
    """

    length: int
    sequences: int
    rows: tuple[int, ...]
    multiple: int
    mean_rows: float

    def rows_for(self, needed: int) -> int:
        """Returns the number of rows of a batch whose examples need `needed` rows."""
        return next((rows for rows in self.rows if rows >= needed), _up(needed, self.multiple))


def plan(
    data: EncodedRows,
    batch_size: int,
    steps: int,
    multiple: int,
    row_flops: Callable[[int], float],
    parts: int = 1,
    compilation: float = 0.0,
    length: int | None = None,
) -> Packing | None:
    """Returns the shapes of packed batches that need the fewest FLOPs, or None if packing is too expensive.

    That is the case if padded batches of examples with similar lengths need far fewer FLOPs, for example if
    every device has only one or two examples.

    Args:
        data: the encoded rows.
        batch_size: the number of examples, or of groups of examples, in a batch.
        steps: the number of steps of the run.
        multiple: the number of devices that the batch is sharded over, a divisor of the number of rows.
        row_flops: maps the number of tokens of a row to its FLOPs.
        parts: `accumulate_steps`, a divisor of the number of rows on every device.
        compilation: the FLOPs in the time of a compilation; each number of rows needs a compilation.
        length: the number of tokens per row with which the run was started, or 0 if its batches are not
            packed; None to choose.
    """
    lengths = data.lengths
    shortest, longest = int(lengths.min()), int(lengths.max())
    tried = _orders(data, batch_size, _TRIED_BATCHES)

    def cost_of_rows(length):
        needed = [len(_fit(lengths, order, length, length // shortest)) for order in tried]
        return np.mean([_up(rows, multiple) for rows in needed]) * row_flops(length)

    if length is None:
        spacing = _up(max(1, longest // 8), 8)
        length = min(range(_up(longest, 8), _up(2 * longest, 8) + 1, spacing), key=cost_of_rows)
        grouped = data.group_lengths
        buckets = np.asarray(bucket_lengths(grouped, batch_size, data.max_seq_length))
        widths, counts = np.unique(buckets[np.searchsorted(buckets, grouped)], return_counts=True)
        unpacked = sum(count * row_flops(int(width)) for width, count in zip(widths, counts, strict=True))
        unpacked *= data.rows_per_example
        if cost_of_rows(length) > _DEARER * unpacked / len(grouped) * batch_size:
            return None
    if not length:
        return None

    sequences, multiple = length // shortest, multiple * parts
    counted = min(_COUNTED * steps, _COUNTED_BATCHES, max(_TRIED_BATCHES, _COUNTED_EXAMPLES // batch_size))
    orders = _orders(data, batch_size, counted)
    needed = np.array([len(_fit(lengths, order, length, sequences)) for order in orders])
    candidates = np.arange(multiple, _up(int(needed.max()), multiple) + 1, multiple)
    shapes = min(_MOST_SHAPES, 1 + steps // _STEPS_A_SHAPE)
    least = compilation / row_flops(length) * len(orders) / max(1, steps)
    rows = choose_sizes(needed, candidates, shapes, least)
    mean = float(np.mean(np.asarray(rows)[np.searchsorted(rows, needed)]))
    return Packing(length, sequences, rows, multiple, mean)


def train_batches(
    data: EncodedRows,
    packing: Packing,
    batch_size: int,
    seed: int,
    start_step: int,
    local_rows: Callable[[int], np.ndarray] = np.arange,
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yields packed batches of `batch_size` examples (or groups) without end, from step `start_step` on.

    `local_rows` maps the number of rows of a global batch to the rows that this process feeds.
    """
    for groups in orders_from(data, batch_size, seed, start_step, group_by_length=False):
        yield make_batch(data, expand(groups, data.rows_per_example), packing, local_rows)


def make_batch(
    data: EncodedRows,
    indices: np.ndarray,
    packing: Packing,
    local_rows: Callable[[int], np.ndarray] = np.arange,
) -> dict[str, np.ndarray]:
    """Returns one packed batch of the rows `indices` of the data, int64 [B]; -1 is skipped.

    The rows of a group are consecutive; `local_rows` is as in `train_batches`.

    Returns:
        int32 `input_ids` [R, L] and `lengths` [R]; int32 `starts` and `first_lengths` [R, S], which are L and
        0 for slots without an example; float32 `weights` [R, S], and `row_weights` [R, S] if `data` has them;
        targets [R, S, ...]. S is `packing.sequences`. If `data` has groups, whose rows the loss compares,
        weights, row weights and targets are [B, ...] instead, in the order of `indices`, and int32 `places`
        [B] has row x S + slot for each.
    """
    rows = _fit(data.lengths, indices, packing.length, packing.sequences)
    by_example = {"weights": np.broadcast_to(np.float32(1), len(data)), **data.targets}
    if data.row_weights is not None:
        by_example["row_weights"] = data.row_weights
    if data.rows_per_example == 1:
        return _filled(data, rows, packing, local_rows, by_example)
    members = _of_members(by_example, indices, rows, packing.sequences, local_rows(len(indices)))
    return _filled(data, rows, packing, local_rows, {}) | members


def for_outputs(
    lengths: np.ndarray, tokens: int, multiple: int, row_cost: Callable[[int], float], padded: float
) -> Packing | None:
    """Returns the shape of packed batches for prediction if they cost less than padded batches, else None.

    `lengths`, int64 [N], are the lengths of examples, `tokens` is the size of a batch on each of `multiple`
    devices, `padded` the cost of all padded rows.
    """
    length = max(_SHORTEST_ROW, 1 << (int(lengths.max()) - 1).bit_length())
    rows, sequences = multiple * max(1, tokens // length), length // _LEAST_TOKENS
    needed = max(lengths.sum() / (_FULL * length), len(lengths) / sequences)
    if _up(math.ceil(needed), rows) * row_cost(length) >= padded:
        return None
    return Packing(length, sequences, (rows,), rows, rows)


def output_batches(
    data: EncodedRows, packing: Packing, local_rows: np.ndarray
) -> list[tuple[Sequence[np.ndarray], Callable[[], dict[str, np.ndarray]]]]:
    """Returns, for each batch, the examples of its rows and a function that makes the batch without targets.

    The last batch may have fewer rows than its shape. `local_rows` are the rows that this process feeds.
    """
    rows = _fit(data.lengths, np.arange(len(data)), packing.length, packing.sequences)
    parts = [rows[begin : begin + packing.multiple] for begin in range(0, len(rows), packing.multiple)]
    of_example = {"weights": np.broadcast_to(np.float32(1), len(data))}

    def make(part):
        return _filled(data, part, packing, lambda count: local_rows, of_example)

    return [(part, functools.partial(make, part)) for part in parts]


def _filled(
    data: EncodedRows,
    rows: Sequence[np.ndarray],
    packing: Packing,
    local_rows: Callable[[int], np.ndarray],
    by_example: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    places = local_rows(packing.rows_for(len(rows)))
    shape = (len(places), packing.sequences)
    batch = {
        "input_ids": np.full((len(places), packing.length), data.pad_id, np.int32),
        "lengths": np.zeros(len(places), np.int32),
        "starts": np.full(shape, packing.length, np.int32),
        "first_lengths": np.zeros(shape, np.int32),
    }
    for name, values in by_example.items():
        batch[name] = np.zeros((*shape, *values.shape[1:]), values.dtype)
    for row, place in enumerate(places):
        start = 0
        for slot, index in enumerate(rows[place] if place < len(rows) else ()):
            tokens = data.tokens[data.offsets[index] : data.offsets[index + 1]]
            batch["input_ids"][row, start : start + len(tokens)] = tokens
            batch["starts"][row, slot] = start
            batch["first_lengths"][row, slot] = data.first_lengths[index]
            for name, values in by_example.items():
                batch[name][row, slot] = values[index]
            start += len(tokens)
        batch["lengths"][row] = start
    return batch


def _of_members(by_example, indices, rows, sequences, chosen):
    slot_of = {index: row * sequences + slot for row, of in enumerate(rows) for slot, index in enumerate(of)}
    indices = indices[chosen]
    members = {}
    for name, values in by_example.items():
        members[name] = values[indices]
        members[name][indices < 0] = 0
    places = [slot_of.get(index, 0) for index in indices]
    return members | {"places": np.array(places, np.int32)}


def _fit(lengths, indices, capacity, most):
    indices = indices[indices >= 0]
    return [indices[places] for places in best_fit(lengths[indices].tolist(), capacity, most)]


def _orders(data, batch_size, count):
    stream = orders_from(data, batch_size, _PLAN_SEED, 0, group_by_length=False)
    return [expand(groups, data.rows_per_example) for groups in itertools.islice(stream, count)]


def _up(number, multiple):
    return -(-number // multiple) * multiple
