"""A table used for lookups at a model's start and for a product at its end, whose gradient is reduced once.

Each of the two uses has a gradient that is summed over all devices. XLA adds the gradient of the lookup to
that of the product only after the first of these sums and then sums again, so the word embeddings, the
largest parameter, cross the links twice per step. With one copy of the table for each shard of the rows, both
gradients are added on each device and there is a single sum over the shards. The copies take no memory,
because every device holds the table anyway.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import platform
from bert_jax.kernels.matmul import dense


def for_each_shard(table: jax.Array, rows: int) -> jax.Array:
    """Returns one copy of the table for each of the D shards of a batch.

    Args:
        table: float32 [V, H].
        rows: number of rows of the batch.

    Returns:
        [D, V, H]; the table unchanged if the rows are not split, or not evenly.
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
    """Returns x T' + b, [B, P, V] in the dtype of x.

    Args:
        x: [B, P, H].
        table: a table as for `look_up`.
        bias: float32 [V], or None.
    """
    if table.ndim == 2:
        out = dense(x.reshape(-1, x.shape[-1]), table, bias, True)
    else:
        each = x.reshape(table.shape[0], -1, x.shape[-1])
        out = jax.vmap(lambda x, table: dense(x, table, bias, True))(each, table)
    return out.reshape(*x.shape[:-1], -1)
