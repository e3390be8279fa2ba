"""The word embeddings, used for lookups at a model's start and for a matmul at its end.

Each of the two uses has a gradient that is summed over all devices. XLA adds the lookup's gradient to the
matmul's gradient only after the first of these sums and then sums again, so the gradient of the word
embeddings, the largest parameter, crosses the links twice per step. With one copy of the table for each shard
of the rows, both gradients are added on each device, followed by a single sum over the shards. The copies
take no memory, because every device holds the table anyway.

On a CPU, the loss, the accuracy and the gradients read or write the logits about ten times, and each pass is
bound by memory bandwidth. `cross_entropy` computes the logits of a few rows at a time, which stay in the
cache, and their gradient together with the loss, so that no later pass needs them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import platform
from bert_jax.kernels.matmul import dense, materialize, matmul, sum_rows, transposed

_ROWS = 128  # fewer rows make the matmuls slow


def for_each_shard(table: jax.Array, rows: int) -> jax.Array:
    """Returns a copy of the table [V, H] for each of the D shards of a batch of `rows`, float32 [D, V, H].

    If the rows are not split, or not evenly, it returns the table unchanged.
    """
    shards = platform.shards("batch")
    if shards == 1 or rows % shards:
        return table
    return nn.with_logical_constraint(
        jnp.broadcast_to(table, (shards, *table.shape)), ("batch", "vocab", None)
    )


def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """Returns the rows [B, L, H] at `ids`, int32 [B, L], of a table [V, H] or from `for_each_shard`."""
    if table.ndim == 2:
        return jnp.take(table, ids, axis=0, mode="clip")
    each = ids.reshape(table.shape[0], -1, ids.shape[-1])
    rows = jax.vmap(lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"))(table, each)
    return rows.reshape(*ids.shape, -1)


def logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Returns x T' + b, [B, P, V] in the dtype of x [B, P, H]; the bias is float32 [V] or None."""
    if table.ndim == 2:
        out = dense(x.reshape(-1, x.shape[-1]), table, bias, True)
    else:
        each = x.reshape(table.shape[0], -1, x.shape[-1])
        out = jax.vmap(lambda x, table: dense(x, table, bias, True))(each, table)
    return out.reshape(*x.shape[:-1], -1)


class LateLogits(NamedTuple):
    """The logits x T' + b before they are computed: [B, P, H], float32 [V, H] and float32 [V] or None.

    The dtype of x, float32 or bfloat16, is the dtype of the matmuls.
    """

    x: jax.Array
    table: jax.Array
    bias: jax.Array | None


def number_of_chunks(rows: int, features: int) -> int:
    """Returns the number of chunks into which `cross_entropy` divides rows [rows, features].

    It is 1 if chunks do not help: on other platforms, if rows or classes are sharded, and if reading the
    table once for each chunk costs more than the passes over the logits, because the rows are few.
    """
    if platform.target_platform() != "cpu" or platform.shards("batch") > 1 or platform.shards("vocab") > 1:
        return 1
    return max(1, rows // max(_ROWS, features // 2))


def cross_entropy(logits: LateLogits, labels: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the sums of the weighted negative log-likelihoods in nats and of the weighted accuracies.

    Both are float32 scalars, with the same values as in `objectives.losses`. The accuracy has no gradient.
    Labels are int32 [B, P], in [0, V) where the weight, float32 [B, P], is not zero.
    """
    x, table, bias = logits
    count, rows = number_of_chunks(labels.size, x.shape[-1]), labels.size

    def divide(values):
        """Returns [count, rows of a chunk, ...]; padding rows have the weight 0."""
        flat = values.reshape(rows, *values.shape[labels.ndim :])
        flat = jnp.pad(flat, ((0, -rows % count), *((0, 0) for _ in flat.shape[1:])))
        return flat.reshape(count, -1, *flat.shape[1:])

    labels = jnp.where(weights > 0, labels, 0)
    return _sums(divide(x), table, bias, divide(labels), divide(weights))


@jax.custom_vjp
def _sums(x, table, bias, labels, weights):
    """Returns both sums for x [C, R, H], table [V, H], bias [V] or None, labels and weights [C, R]."""

    def add(sums, chunk):
        x, labels, weights = chunk
        both, _ = _chunk(_logits(x, table, bias), labels, weights)
        return jax.tree.map(jnp.add, sums, both), None

    return jax.lax.scan(add, (jnp.float32(0), jnp.float32(0)), (x, labels, weights))[0]


def _logits(x, table, bias):
    logits = matmul(x, table.astype(x.dtype), (1, 1))
    return (logits if bias is None else logits + bias.astype(x.dtype)).astype(jnp.float32)


def _chunk(logits, labels, weights):
    """Returns both sums of logits [R, V], and a function that computes the gradient of the first one."""
    largest = jnp.max(logits, axis=-1)
    each = jnp.exp(logits - largest[:, None])
    total = jnp.sum(each, axis=-1)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    tied = jnp.sum(logits == largest[:, None], axis=-1, dtype=jnp.float32)
    loss = jnp.sum((jnp.log(total) + largest - picked) * weights)
    hits = jnp.sum(jnp.where(picked >= largest, weights / tied, 0.0))

    def gradient():
        hit = (labels[:, None] == jnp.arange(logits.shape[-1])).astype(jnp.float32)
        return (each / total[:, None] - hit) * weights[:, None]

    return (loss, hits), gradient


def _forward(x, table, bias, labels, weights):
    def add(carry, chunk):
        sums, dtable, dbias = carry
        x, labels, weights = chunk
        both, gradient = _chunk(_logits(x, table, bias), labels, weights)
        g = materialize(gradient().astype(x.dtype))
        dx = matmul(g, table.astype(x.dtype), (1, 0))
        # The sum stays [H, V], so that no chunk transposes the large result.
        dtable += matmul(transposed(x), g, (1, 0), jnp.float32)
        dbias = None if dbias is None else dbias + sum_rows(g)
        return (jax.tree.map(jnp.add, sums, both), dtable, dbias), dx

    zero = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = (zero(()), zero(())), zero(table.shape[::-1]), None if bias is None else zero(bias.shape)
    (sums, dtable, dbias), dx = jax.lax.scan(add, start, (x, labels, weights))
    return sums, (dx, dtable, dbias)


def _backward(gradients, g):
    dx, dtable, dbias = gradients
    scale, _ = g  # of the loss; the accuracy has no gradient
    dbias = None if dbias is None else dbias * scale
    return (dx * scale).astype(dx.dtype), (dtable * scale).T, dbias, None, None


_sums.defvjp(_forward, _backward)
