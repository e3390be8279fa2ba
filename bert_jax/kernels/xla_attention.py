"""Attention that computes a matrix of the logits of all pairs, which XLA compiles for any platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.kernels import platform
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.matmul import einsum, materialize

# The logit of a masked pair. google-research/bert adds -10000 to the logits of masked positions; in float32
# the softmax is exactly 0 either way.
MASKED = -1e9

# Blocks of keys that a block of queries reads in `_banded`: the same block, and one to each side.
_BLOCKS = 3


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    causal: bool,
    window: int,
    slopes: np.ndarray | None,
    rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Computes `attention.attention` for rotated query and key, and with biases already added.

    The arguments are the same. `rate` is 0 if nothing is dropped.
    """
    length = query.shape[1]
    # An exported program may have rows of any length.
    if window and isinstance(length, int) and _BLOCKS * window < length:
        return _banded(query, key, value, sequence_ids, causal, window, slopes, rate, dropout_key)
    if platform.target_platform() == "cpu" and query.dtype == jnp.float32 and not rate:
        return _by_heads(query, key, value, sequence_ids, causal, window, slopes)
    weights = probabilities(query, key, sequence_ids, causal, window, slopes)
    return einsum("bnqk,bknd->bqnd", dropout(weights, dropout_key, rate), value, value.dtype)


def _by_heads(query, key, value, sequence_ids, causal, window, slopes):
    """Returns attention of all pairs, without dropout, in the form that is fastest with XLA:CPU.

    XLA:CPU needs two passes on all cores, one up to the exponentials and one for the second matmul and the
    division, if heads come before tokens in memory, the mask is added, and the output is divided instead of
    the probabilities. With dropout, and in bfloat16, this form is not faster (benchmarks/NOTES.md).
    """
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    query, key, value = materialize(tuple(x.swapaxes(1, 2) for x in (query, key, value)))
    mask = jnp.where(allowed_pairs(sequence_ids, causal, window), 0.0, MASKED)
    logits = einsum("bnqd,bnkd->bnqk", query, key, jnp.float32) + mask
    if slopes is not None:
        logits += _bias(slopes, _distances(sequence_ids.shape[1]))
    weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    out = einsum("bnqk,bnkd->bnqd", weights, value, jnp.float32)
    return materialize(out / weights.sum(-1, keepdims=True)).swapaxes(1, 2)


def _banded(query, key, value, sequence_ids, causal, window, slopes, rate, dropout_key):
    """Returns local attention of rows that are longer than three windows.

    Rows are divided into blocks of `window` tokens. The keys that the queries of a block attend to are in
    three blocks, so the logits are [B, N, blocks, window, 3 window] instead of [B, N, L, L].
    """
    rows, length, *sizes = query.shape
    blocks = -(-length // window)
    padding = blocks * window - length

    def divided(x, before_and_after, fill=0):
        widths = ((0, 0), (before_and_after, before_and_after + padding), *[(0, 0)] * (x.ndim - 2))
        x = jnp.pad(x, widths, constant_values=fill)
        return x.reshape(rows, -1, window, *x.shape[2:])

    def neighbors(x, fill=0):
        x = divided(x, window, fill)
        return jnp.concatenate([x[:, i : i + blocks] for i in range(_BLOCKS)], axis=2)

    # Positions outside of a row belong to no sequence.
    query_ids, key_ids = divided(sequence_ids, 0, -1), neighbors(sequence_ids, -1)
    allowed = query_ids[:, :, :, None] == key_ids[:, :, None]
    ahead = jnp.arange(_BLOCKS * window) - window - jnp.arange(window)[:, None]
    distance = jnp.abs(ahead)
    allowed &= (distance <= window) & (ahead <= 0 if causal else True)
    query = divided(query, 0) * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    logits = einsum("bcqnd,bcknd->bncqk", query, neighbors(key), jnp.float32)
    if slopes is not None:
        logits += _bias(slopes, distance)[:, None]
    logits = jnp.where(allowed[:, None], logits, MASKED)
    weights = dropout(jax.nn.softmax(logits, axis=-1).astype(query.dtype), dropout_key, rate)
    out = einsum("bncqk,bcknd->bcqnd", weights, neighbors(value), value.dtype)
    return out.reshape(rows, -1, *sizes)[:, :length]


def allowed_pairs(sequence_ids: jax.Array, causal: bool = False, window: int = 0) -> jax.Array:
    """Returns bool [B, 1, L, L]: whether a query (third dimension) attends to a key (fourth dimension)."""
    allowed = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    length = sequence_ids.shape[1]
    if causal:
        allowed &= jnp.tril(jnp.ones((length, length), bool))
    if window:
        allowed &= _distances(length) <= window
    return allowed


def _bias(slopes: np.ndarray, distance: jax.Array) -> jax.Array:
    """Returns the biases of the logits for `slopes` and distances [Q, K], float32 [N, Q, K]."""
    return jnp.multiply(-slopes[:, None, None], distance.astype(jnp.float32))


def _distances(length: int) -> jax.Array:
    """Returns int32 [L, L], the absolute difference of the positions of each two tokens."""
    place = jnp.arange(length)
    return jnp.abs(place[:, None] - place)


def probabilities(
    query: jax.Array,
    key: jax.Array,
    sequence_ids: jax.Array,
    causal: bool = False,
    window: int = 0,
    slopes: np.ndarray | None = None,
) -> jax.Array:
    """Returns the attention probabilities [B, N, L, L] in the dtype of the query; each row sums to 1.

    The arguments are as for `attention.attention`, which multiplies the probabilities by the values.
    """
    logits = attention_logits(query, key, sequence_ids, causal, window, slopes)
    return jax.nn.softmax(logits, axis=-1).astype(query.dtype)


def attention_logits(
    query: jax.Array,
    key: jax.Array,
    sequence_ids: jax.Array,
    causal: bool = False,
    window: int = 0,
    slopes: np.ndarray | None = None,
) -> jax.Array:
    """Returns the logits of `probabilities`, float32 [B, N, L, L]; masked pairs have the logit -1e9."""
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    logits = einsum("bqnd,bknd->bnqk", query, key, jnp.float32)
    if slopes is not None:
        logits += _bias(slopes, _distances(query.shape[1]))
    return jnp.where(allowed_pairs(sequence_ids, causal, window), logits, MASKED)
