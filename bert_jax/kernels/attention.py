"""Attention within each sequence of a row, computed by an implementation that is chosen by name."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from bert_jax.kernels import platform, xla_attention
from bert_jax.kernels.tpu import attention as tpu_attention

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

Angles = tuple[jax.Array, jax.Array]  # cosines and sines of rotary positions, float32 [B, L, 1, D/2] each
Biases = tuple[jax.Array, jax.Array, jax.Array]  # of query, key and value, float32 [N, D] each


def apply_rotary(x: jax.Array, angles: Angles) -> jax.Array:
    """Returns x [B, L, N, D] rotated in float32, in the dtype of x (Su et al. 2021).

    Coordinates i and i + D/2 of a head form one plane. All heads use the same angles.
    """
    cosine, sine = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def prepare(
    query: jax.Array, key: jax.Array, value: jax.Array, biases: Biases | None, angles: Angles | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns query, key and value with their biases, query and key rotated; see `attention`."""
    if biases is not None:
        query, key, value = (
            x + bias.astype(x.dtype) for x, bias in zip((query, key, value), biases, strict=True)
        )
    if angles is not None:
        query, key = (apply_rotary(x, angles) for x in (query, key))
    return query, key, value


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    implementation: str,
    biases: Biases | None = None,
    angles: Angles | None = None,
    causal: bool = False,
    window: int = 0,
    slopes: np.ndarray | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Returns scaled dot-product attention, in which a token attends only to tokens of the same sequence.

    Args:
        query: [B, L, N, D], float32 or bfloat16.
        key: as `query`.
        value: as `query`.
        sequence_ids: int32 [B, L]; tokens attend to each other if their ids are equal. Padding has id 0
            and attends to padding.
        implementation: "xla", "cudnn", "pallas" or "splash", as `dispatch.choose_attention` chooses it for
            the device and these arguments. On a CPU "pallas" and "splash" are interpreted, which is slow.
        biases: added here to query, key and value. The kernel "pallas" adds them itself, and its backward
            pass also computes their gradients, which are sums over tokens.
        angles: rotary positions, applied to query and key after their biases. "pallas" applies them itself.
        causal: whether attention to later tokens is masked.
        window: a token attends to itself and to the tokens at most this far to each side; 0 for all.
        slopes: float32 [N]; the distance of two tokens times the slope of the head is subtracted from their
            logit.
        dropout_rate: dropout rate of the attention probabilities, per element.
        dropout_key: None for no dropout.

    Returns:
        [B, L, N, D] in the dtype of the query. Softmax is computed in float32.
    """
    rate = dropout_rate if dropout_key is not None else 0.0
    options = (sequence_ids, causal, window, slopes, rate, dropout_key)
    if implementation == "pallas":
        return tpu_attention.attend(query, key, value, *options, biases, angles)
    query, key, value = prepare(query, key, value, biases, angles)
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=xla_attention.allowed_pairs(sequence_ids),
            is_causal=causal,
            implementation="cudnn",
        )
    if implementation == "splash":
        return _splash(query, key, value, sequence_ids, causal, window)
    return xla_attention.attend(query, key, value, *options)


def _splash(query, key, value, sequence_ids, causal, window):
    kernel = functools.partial(
        _splash_local, causal=causal, window=window, interpret=platform.interprets_kernels()
    )
    by_head = ("batch", "heads", None, None)
    kernel = platform.on_each_device(kernel, (by_head, by_head, by_head, ("batch", None)), by_head)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return kernel(query, key, value, sequence_ids).swapaxes(1, 2)


def _splash_block(length: int, window: int = 0) -> int:
    """Returns the number of tokens of a block of splash attention.

    Blocks without an allowed pair are skipped: with a window, smaller blocks skip more of a row.
    """
    largest = max(window, 128) if window else length
    return next(size for size in (512, 256, 128) if length % size == 0 and size <= largest)


def _splash_local(query, key, value, sequence_ids, *, causal, window, interpret):
    _, heads, length, _ = query.shape
    block = _splash_block(length, window)
    shape = (length, length)
    if window:
        mask = splash_attention_mask.LocalMask(shape, (window, 0 if causal else window), offset=0)
    else:
        mask = (splash_attention_mask.CausalMask if causal else splash_attention_mask.FullMask)(shape)
    sizes = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        # With a window, the fused kernel would write a whole gradient of the queries for each block of keys.
        use_fused_bwd_kernel=not window,
        block_q_dq=block if window else None,
        block_kv_dq=block if window else None,
    )
    kernel = splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([mask] * heads),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    segments = splash_attention_kernel.SegmentIds(q=sequence_ids, kv=sequence_ids)
    return jax.vmap(kernel)(query, key, value, segments).astype(query.dtype)
