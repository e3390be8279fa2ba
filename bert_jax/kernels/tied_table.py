"""A table that is looked up at a model's start and multiplied with at its end: its gradient is reduced once.

Each of the two uses has a gradient that is summed over all devices. XLA puts the gradient of the look-up
into the one of the product after the first of these sums, and sums again, so that the word embeddings, the
largest parameter, go over the links twice in a step. Written with one table for each shard of the rows, which
takes no memory, for every device holds the table anyway, both gradients are added on their device, and the
sum over the shards is the only one.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import platform
from bert_jax.kernels.dense import dense


def for_each_shard(table: jax.Array, rows: int) -> jax.Array:
    """One and the same table for each of the D shards of a batch.

    Args:
      table: float32 [V, H].
      rows: of the batch.

    Returns:
      [D, V, H]; the table as it is where the rows are not split, or not evenly.
    """
    shards = platform.shards("batch")
    if shards == 1 or rows % shards:
        return table
    return nn.with_logical_constraint(
        jnp.broadcast_to(table, (shards, *table.shape)), ("batch", "vocab", None)
    )


def look_up(table: jax.Array, ids: jax.Array) -> jax.Array:
    """The rows of a table, [V, H] or as `for_each_shard` gives it, at int32 [B, L]: [B, L, H]."""
    if table.ndim == 2:
        return jnp.take(table, ids, axis=0, mode="clip")
    each = ids.reshape(table.shape[0], -1, ids.shape[-1])
    found = jax.vmap(lambda table, ids: jnp.take(table, ids, axis=0, mode="clip"))(table, each)
    return found.reshape(*ids.shape, -1)


def logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """x T' + b: [B, P, H], a table as for `look_up` and float32 [V] -> [B, P, V] of the dtype of x."""
    if table.ndim == 2:
        out = dense(x.reshape(-1, x.shape[-1]), table, bias, True)
    else:
        each = x.reshape(table.shape[0], -1, x.shape[-1])
        out = jax.vmap(lambda x, table: dense(x, table, bias, True))(each, table)
    return out.reshape(*x.shape[:-1], -1)
