"""Computes a batch in microbatches of its rows, and overlaps batches with work on the host."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from bert_jax.kernels.dropout import dropout_rows, row_numbers
from bert_jax.objectives.base import Batch
from bert_jax.parallel import host

# The activations of 1,024 tokens stay in the caches of two CPU cores: `embed` with MiniLM computes 1.25 times
# as many texts/s as with 4,096 tokens. One core is not faster with fewer tokens, and more cores need more
# (benchmarks/NOTES.md).
_TOKENS_PER_CORE = 512
_LEAST_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768


def tokens_at_a_time(mesh: jax.sharding.Mesh) -> int | None:
    """Returns the best number of tokens per device in a forward pass on CPUs; None on other devices."""
    if mesh.devices.flat[0].platform != "cpu":
        return None
    return max(_LEAST_TOKENS, math.ceil(host.usable_cores()) // mesh.size * _TOKENS_PER_CORE)


def tokens_on_device(mesh: jax.sharding.Mesh) -> int:
    """Returns the number of tokens, including padding, of a batch of predictions on each device."""
    return tokens_at_a_time(mesh) or _ACCELERATOR_TOKENS


def for_forward_pass(batch: Batch, mesh: jax.sharding.Mesh) -> int:
    """Returns the number of microbatches for the forward pass of a global batch: 1, except on CPUs.

    The rows of each device are divided evenly, into microbatches whose number of tokens is the nearest to
    `tokens_at_a_time`. A batch without int32 `input_ids` [B, ..., L] is not split.
    """
    tokens, ids = tokens_at_a_time(mesh), batch.get("input_ids")
    if tokens is None or ids is None:
        return 1
    rows = max(1, ids.shape[0] // (mesh.shape["data"] * mesh.shape["fsdp"]))
    ideal = tokens / math.prod(ids.shape[1:])
    each = min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(math.log(n / ideal)))
    return rows // each


def split_rows(batch: Any, count: int) -> Any:
    """Splits a batch: arrays [B, ...] become [count, B / count, ...].

    Row r of microbatch m is row r x count + m of the batch, so that sharded rows stay on their devices.
    """
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), batch)


def join_rows(split: Any) -> Any:
    """Undoes `split_rows`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), split)


def summed(function: Callable[[Batch], Any], batch: Batch, count: int) -> Any:
    """Returns the sums of the results of a function over `count` microbatches of a batch [B, ...].

    The function maps rows to a tree of sums over them. Each row has the same dropout as in the whole batch.
    """
    if count == 1:
        return function(batch)
    of_microbatch, split = _of_microbatch(function), _numbered(batch, count)

    def body(total, microbatch):
        return jax.tree.map(jnp.add, total, of_microbatch(microbatch)), None

    shapes = jax.eval_shape(of_microbatch, jax.tree.map(lambda x: x[0], split))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(body, zeros, split)[0]


def mapped(function: Callable[[Batch], Any], batch: Batch, count: int, *, recompute: bool = False) -> Any:
    """Returns the results of a function for all rows of a batch, one of `count` microbatches at a time.

    The function maps rows to a tree of arrays with these rows along axis 0. Each row has the same dropout as
    in the whole batch. With `recompute`, the backward pass recomputes the activations.
    """
    if count == 1:
        return function(batch)
    of_microbatch = _of_microbatch(function)
    if recompute:
        of_microbatch = jax.checkpoint(of_microbatch)
    return join_rows(jax.lax.map(of_microbatch, _numbered(batch, count)))


def _of_microbatch(function: Callable[[Batch], Any]) -> Callable[[tuple[jax.Array, Batch]], Any]:
    def of_microbatch(numbered):
        numbers, rows = numbered
        with dropout_rows(numbers):
            return function(rows)

    return of_microbatch


def _numbered(batch: Batch, count: int) -> tuple[jax.Array, Batch]:
    # In batches of packed rows, axis 0 of some arrays may index examples instead of rows.
    rows = batch["input_ids"] if "input_ids" in batch else jax.tree.leaves(batch)[0]
    return split_rows((row_numbers(rows.shape[0]), batch), count)


IN_FLIGHT = 2  # The number of outputs in device memory before the oldest is copied to the host.

Key = TypeVar("Key")


def pipelined(compute: Callable[[Any], Any], batches: Iterable[tuple[Key, Any]]) -> Iterator[tuple[Key, Any]]:
    """Yields the key and the output of every (key, batch) pair in order, as arrays on the host.

    `compute` dispatches a batch and returns its output without waiting for it. The next batch is dispatched
    before the output of the previous one is copied to the host, so that the devices always have work. At most
    `IN_FLIGHT` outputs are in device memory at a time.
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
