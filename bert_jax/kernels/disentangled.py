"""Disentangled attention (He et al. 2021, section 3.1), with matmuls and shifts instead of gathers.

The logits of a query i and a key j depend on their contents and on their distance i - j:

    (q_i k_j + q_i K[i - j] + k_j Q[i - j]) / sqrt((1 + the number of the last two terms) D)

A block of queries is multiplied by the rows of K for all distances that occur in it. In the product, each
row is a window of distances that starts one element before the window of the row above. Reshaping the matrix
to rows that are one element shorter aligns them (the relative shift of Dai et al. 2019). The third term is
the same with queries and keys exchanged.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.kernels import platform
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.matmul import einsum, materialize
from bert_jax.kernels.tpu import disentangled as tpu_disentangled
from bert_jax.kernels.xla_attention import MASKED, allowed_pairs

_BLOCK = 128  # queries whose distances are multiplied together


def buckets(distances: Any, count: int, longest: int, xp: Any = np) -> Any:
    """Returns the rows of a table of relative positions for distances, from 0 to 2 (count or longest) - 1.

    Distances, int32 [R], are positions of queries minus positions of keys; `xp` is NumPy, or jax.numpy for
    arrays that are traced. Distances up to half of `count` have one row each, and longer ones share rows
    whose widths grow with the distance. A count of 0 gives each distance below `longest` a row. All distances
    from `longest` on share the last row.
    """
    rows = count or longest
    bucket = distances
    if count:
        middle = count // 2
        far = xp.maximum(abs(distances), middle).astype(np.float32) / np.float32(middle)
        slope = np.log(np.float32((longest - 1) / middle))
        bucket = xp.sign(distances) * (xp.ceil(xp.log(far) / slope * np.float32(middle - 1)) + middle)
        bucket = xp.where(abs(distances) <= middle, distances, bucket)
    return xp.clip(bucket + rows, 0, 2 * rows - 1).astype(np.int32)


def rows_of(table: jax.Array, length: int, count: int, longest: int) -> tuple[jax.Array, Any]:
    """Returns rows [R, H] of a table [2 S, H] for the distances that occur in rows of `length` tokens.

    The second result is int32 [2 L - 1], the index of the row of each distance from L - 1 down to 1 - L.
    """
    if not isinstance(length, int):  # an exported program may have rows of any length
        return table, buckets(length - 1 - jnp.arange(2 * length - 1), count, longest, jnp)
    rows = buckets(np.arange(length - 1, -length, -1), count, longest)
    return table[rows[-1] : rows[0] + 1], rows - rows[-1]


def expand(x: jax.Array, rows: Any) -> jax.Array:
    """Returns x [R, N, D] at `rows` int32 [K], which are in ascending or descending order: [K, N, D]."""
    if isinstance(rows, np.ndarray) and len(rows) == len(x):
        return x if rows[0] == 0 else x[::-1]
    if platform.target_platform() != "tpu":
        return jnp.take(x, rows, axis=0)
    # The gradient of a gather would be a scatter, row by row.
    selector = jax.nn.one_hot(rows, len(x), dtype=x.dtype)
    return jnp.einsum("kr,rnd->knd", selector, x, precision=jax.lax.Precision.HIGHEST)


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    relative_keys: jax.Array | None,
    relative_queries: jax.Array | None,
    sequence_ids: jax.Array,
    *,
    implementation: str,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Returns disentangled attention, in which a token attends only to tokens of the same sequence.

    `relative_keys` are K for the distances L - 1 down to 1 - L, and `relative_queries` Q for 1 - L up to
    L - 1, [2 L - 1, N, D] each, or None without this term. The implementation is "xla" or "pallas". The other
    arguments and the result are as for `attention.attention`.
    """
    terms = 1 + (relative_keys is not None) + (relative_queries is not None)
    scale = jnp.asarray((terms * query.shape[-1]) ** -0.5, query.dtype)
    query = query * scale
    if relative_queries is not None:
        relative_queries = relative_queries * scale
    if implementation == "pallas":
        nothing = jnp.zeros((2 * query.shape[1] - 1, *query.shape[2:]), query.dtype)
        keys_table, queries_table = (nothing if x is None else x for x in (relative_keys, relative_queries))
        return tpu_disentangled.attend(
            query, key, value, keys_table, queries_table, sequence_ids, dropout_rate, dropout_key
        )
    query, key = materialize(query.swapaxes(1, 2)), materialize(key.swapaxes(1, 2))
    logits = einsum("bnqd,bnkd->bnqk", query, key, jnp.float32)
    if relative_keys is not None:
        logits += _by_distance(query, relative_keys)
    if relative_queries is not None:
        logits += _by_distance(key, relative_queries).swapaxes(2, 3)
    logits = jnp.where(allowed_pairs(sequence_ids), logits, MASKED)
    weights = dropout(jax.nn.softmax(logits, axis=-1).astype(query.dtype), dropout_key, dropout_rate)
    return einsum("bnqk,bknd->bqnd", weights, value, value.dtype)


def _by_distance(x: jax.Array, relative: jax.Array) -> jax.Array:
    """Returns float32 [B, N, L, L]: x [B, N, L, D] of token a times `relative` of the distance of a and b."""
    length = x.shape[2]
    # An exported program may have rows of any length.
    block = _BLOCK if isinstance(length, int) and length > _BLOCK and not length % _BLOCK else length
    if block is length:
        return _shifted(_product(x, relative))
    results = []
    for start in range(0, length, block):
        rows = relative[length - block - start :][: length + block - 1]
        results.append(_shifted(_product(x[:, :, start : start + block], rows)))
    return jnp.concatenate(results, axis=2)


def _product(x: jax.Array, relative: jax.Array) -> jax.Array:
    """Returns float32 [B, N, A, R] for x [B, N, A, D] and `relative` [R, N, D]."""
    batch, heads, rows, size = x.shape
    x = x.swapaxes(0, 1).reshape(heads, batch * rows, size)
    y = einsum("nxd,rnd->nxr", x, relative, jnp.float32)
    return y.reshape(heads, batch, rows, -1).swapaxes(0, 1)


def _shifted(x: jax.Array) -> jax.Array:
    """Returns [..., A, L]: row a is row a of x [..., A, L + A - 1] from column A - 1 - a on."""
    *outer, rows, columns = x.shape
    x = x.reshape(*outer, rows * columns)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return x.reshape(*outer, rows, columns - 1)[..., : columns - rows + 1]
