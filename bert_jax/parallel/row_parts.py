"""Computes a batch in parts of its rows: sums over all rows, or the outputs of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.kernels.dropout import row_ids, row_numbers
from bert_jax.objectives.base import Batch
from bert_jax.parallel import host

# The activations of 1,024 tokens stay in the caches of two cores of a CPU: `embed` with MiniLM makes 1.25
# times the texts/s of 4,096 tokens. One core is not faster with fewer, and more cores need more
# (benchmarks/NOTES.md).
_TOKENS_PER_CORE = 512
_LEAST_TOKENS = 1024
_ACCELERATOR_TOKENS = 32768


def tokens_at_a_time(mesh: jax.sharding.Mesh) -> int | None:
    """Returns the number of tokens of a forward pass on each device that suits a CPU; None elsewhere."""
    if mesh.devices.flat[0].platform != "cpu":
        return None
    return max(_LEAST_TOKENS, math.ceil(host.usable_cores()) // mesh.size * _TOKENS_PER_CORE)


def tokens_on_device(mesh: jax.sharding.Mesh) -> int:
    """Returns the number of tokens, including padding, of a batch of predictions on each device."""
    return tokens_at_a_time(mesh) or _ACCELERATOR_TOKENS


def of_forward_pass(batch: Batch, mesh: jax.sharding.Mesh) -> int:
    """Returns the number of parts in which the forward pass of a global batch is computed: 1, but on CPUs.

    The rows of each device are divided evenly, into the parts whose number of tokens is the nearest to
    `tokens_at_a_time`.

    Args:
        batch: a batch with int32 `input_ids` [B, ..., L]; one without them is computed at once.
        mesh: the device mesh that holds it.
    """
    tokens, ids = tokens_at_a_time(mesh), batch.get("input_ids")
    if tokens is None or ids is None:
        return 1
    rows = max(1, ids.shape[0] // (mesh.shape["data"] * mesh.shape["fsdp"]))
    wanted = tokens / math.prod(ids.shape[1:])
    each = min((n for n in range(1, rows + 1) if rows % n == 0), key=lambda n: abs(math.log(n / wanted)))
    return rows // each


def split_rows(batch: Any, parts: int) -> Any:
    """Splits a batch into parts: arrays [B, ...] become [parts, B / parts, ...].

    Row r of part p is row r x parts + p of the batch, so that sharded rows stay on their devices.
    """
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1), batch)


def join_rows(parts: Any) -> Any:
    """Returns the rows of a batch from those of its parts, in the order before `split_rows`."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), parts)


def summed(function: Callable[[Batch], Any], batch: Batch, parts: int) -> Any:
    """Returns the sums of the results of a function over the parts of a batch.

    Each row has the same dropout as in the whole batch.

    Args:
        function: rows of the batch -> tree of sums over them.
        batch: a tree of arrays [B, ...].
        parts: the number of parts, which divides B.
    """
    if parts == 1:
        return function(batch)
    of_part, split = _of_part(function), _numbered(batch, parts)

    def body(total, part):
        return jax.tree.map(jnp.add, total, of_part(part)), None

    shapes = jax.eval_shape(of_part, jax.tree.map(lambda x: x[0], split))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(body, zeros, split)[0]


def mapped(function: Callable[[Batch], Any], batch: Batch, parts: int, *, recompute: bool = False) -> Any:
    """Returns the results of a function for all rows of a batch, computed part by part.

    Each row has the same dropout as in the whole batch.

    Args:
        function: rows of the batch -> tree of arrays with these rows along axis 0.
        batch: as of `summed`.
        parts: the number of parts, which divides B.
        recompute: whether the backward pass computes the activations of each part again.
    """
    if parts == 1:
        return function(batch)
    of_part = _of_part(function)
    if recompute:
        of_part = jax.checkpoint(of_part)
    return join_rows(jax.lax.map(of_part, _numbered(batch, parts)))


def _of_part(function: Callable[[Batch], Any]) -> Callable[[tuple[jax.Array, Batch]], Any]:
    def of_part(part):
        numbers, rows = part
        with row_ids(numbers):
            return function(rows)

    return of_part


def _numbered(batch: Batch, parts: int) -> tuple[jax.Array, Batch]:
    """Returns the parts of (numbers of the rows in the whole batch, batch)."""
    # Batches of packed rows may also have arrays whose axis 0 is that of examples.
    rows = batch["input_ids"] if "input_ids" in batch else jax.tree.leaves(batch)[0]
    return split_rows((row_numbers(rows.shape[0]), batch), parts)
