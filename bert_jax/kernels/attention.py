"""Attention limited to each sequence of a row, computed by an implementation chosen by name."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from bert_jax.kernels import dispatch, platform, rotary, xla_attention
from bert_jax.kernels.dispatch import AttentionCase, Choice
from bert_jax.kernels.dropout import kernel_words
from bert_jax.kernels.gpu import attention as gpu_attention
from bert_jax.kernels.tpu import attention as tpu_attention

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )


def choose_here(
    requested: str,
    dtype: str,
    dropout_rate: float,
    length: int,
    heads: int,
    head_size: int,
    *,
    window: int = 0,
    bias: bool = False,
) -> Choice:
    """Returns the attention implementation to use, and why, for the platform and mesh being traced for.

    Args:
        requested: "auto", "xla", "cudnn", "triton", "pallas" or "splash".
        dtype: dtype of query, key and value.
        dropout_rate: dropout rate of the attention probabilities.
        length: number of tokens of a row.
        heads: number of heads of the whole model.
        head_size: features of a head.
        window: number of tokens to each side that a token attends to; 0 for all.
        bias: whether a bias is added to the logits.

    Raises:
        UserError: a kernel is requested by name that cannot compute this.
    """
    heads //= platform.shards("heads")
    case = AttentionCase(dtype, length, heads, head_size, dropout_rate, window, bias)
    return dispatch.choose("attention", requested, case, platform.target())


def prepares_inputs(implementation: str) -> bool:
    """Returns whether an implementation does what `prepare` does itself, in the kernel."""
    return implementation == "pallas"


def prepare(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    biases: tuple[jax.Array, jax.Array, jax.Array] | None,
    angles: rotary.Angles | None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns query, key and value with their biases, and query and key turned; see `attention`."""
    if biases is not None:
        query, key, value = (
            x + bias.astype(x.dtype) for x, bias in zip((query, key, value), biases, strict=True)
        )
    if angles is not None:
        query, key = (rotary.turn(x, angles) for x in (query, key))
    return query, key, value


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    biases: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    angles: rotary.Angles | None = None,
    implementation: str = "auto",
    causal: bool = False,
    window: int = 0,
    slopes: np.ndarray | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Returns scaled dot-product attention, in which a token attends only to tokens of its own sequence.

    Args:
        query: [B, L, N, D], float32 or bfloat16.
        key: as `query`.
        value: as `query`.
        sequence_ids: int32 [B, L]; tokens attend to each other where their ids are equal. Padding has id 0
            and attends to padding.
        biases: float32 [N, D] each, not yet added to query, key and value. "pallas" adds them itself, and
            computes their gradients in the same kernel as the gradients that they are the sums of.
        angles: cosines and sines, float32 [B, L, 1, D/2], by which query and key are turned after their
            biases are added; see `rotary`. "pallas" turns them itself.
        implementation: "xla", "cudnn", "triton", "pallas", "splash", or "auto", which `dispatch` resolves. On
            a CPU "triton", "pallas" and "splash" are interpreted, which is slow.
        causal: whether a token attends to no later token.
        window: a token attends to the tokens at most this far to each side and to itself; 0 for all. All
            implementations but "cudnn", which then cost less than for all tokens of a long row.
        slopes: float32 [N]; the distance of two tokens times the slope of the head is subtracted from their
            logit. All implementations but "cudnn" and "splash".
        dropout_rate: dropout rate of the attention probabilities, per element; "xla", "triton" and "pallas"
            only.
        dropout_key: None for no dropout.

    Returns:
        [B, L, N, D] in the dtype of the query. Softmax is computed in float32.

    Raises:
        UserError: an implementation is requested by name that cannot compute this.
    """
    rate = dropout_rate if dropout_key is not None else 0.0
    chosen = choose_here(
        implementation, str(query.dtype), rate, *query.shape[1:], window=window, bias=slopes is not None
    ).implementation
    settings = (sequence_ids, causal, window, slopes, rate, dropout_key)
    if chosen == "pallas":
        return _pallas(query, key, value, *settings, biases, angles)
    query, key, value = prepare(query, key, value, biases, angles)
    if chosen == "cudnn":
        return _cudnn(query, key, value, sequence_ids, causal)
    if chosen == "splash":
        return _splash(query, key, value, sequence_ids, causal, window)
    attend = {"xla": xla_attention.attend, "triton": _triton}[chosen]
    return attend(query, key, value, *settings)


def _cudnn(query, key, value, sequence_ids, causal):
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=xla_attention.allowed_pairs(sequence_ids),
        is_causal=causal,
        implementation="cudnn",
    )


def _pallas(query, key, value, sequence_ids, causal, window, slopes, rate, dropout_key, biases, angles):
    rows, _, heads, head_size = query.shape
    if biases is None:
        biases = [jnp.zeros(query.shape[2:], jnp.float32)] * 3

    def kernel(query, key, value, sequence_ids, biases, words, heads, slopes, *tables):
        return tpu_attention.row_attention(
            query, key, value, sequence_ids, biases, _with_first_head(words, heads), tables, slopes,
            head_size=head_size, causal=causal, window=window, rate=rate,
            interpret=platform.interprets_kernels(),
        )  # fmt: skip

    tables = () if angles is None else rotary.lane_tables(angles, dispatch.LANES)
    by_head, by_row = ("batch", None, "heads"), ("batch", None)
    axes = (by_head, by_head, by_head, by_row, (None, "heads"), by_row, ("heads",), ("heads",))
    kernel = platform.on_each_device(kernel, (*axes, *[("batch", None, None)] * len(tables)), by_head)
    # Flattened before the kernel's boundary, because an array with as few lanes as one head has would be
    # padded there.
    flat = [x.reshape(*x.shape[:2], -1) for x in (query, key, value)]
    biases = jnp.stack([bias.reshape(-1) for bias in biases])
    words = kernel_words(dropout_key if rate else None, rows)
    out = kernel(*flat, sequence_ids, biases, words, jnp.arange(heads), _array(slopes), *tables)
    return out.reshape(query.shape)


def _array(slopes):
    return None if slopes is None else jnp.asarray(slopes)


def _with_first_head(words, heads):
    """Returns int32 [B, 5]: `kernel_words`, and the index in the whole row of the device's first head.

    A device that has only some of the heads hashes their masks by their indices in the whole row.
    """
    return jnp.concatenate([words, jnp.broadcast_to(heads[:1], (words.shape[0], 1))], axis=1)


def _triton(query, key, value, sequence_ids, causal, window, slopes, rate, dropout_key):
    rows, _, heads, _ = query.shape

    def kernel(query, key, value, sequence_ids, words, heads, slopes):
        return gpu_attention.flash_attention(
            query, key, value, sequence_ids, _with_first_head(words, heads), slopes,
            causal=causal, window=window, rate=rate, interpret=platform.interprets_kernels(),
        )  # fmt: skip

    by_head, by_row = ("batch", None, "heads", None), ("batch", None)
    axes = (*[by_head] * 3, by_row, by_row, ("heads",), ("heads",))
    kernel = platform.on_each_device(kernel, axes, by_head)
    words = kernel_words(dropout_key if rate else None, rows)
    return kernel(query, key, value, sequence_ids, words, jnp.arange(heads), _array(slopes))


def _splash(query, key, value, sequence_ids, causal, window):
    kernel = functools.partial(
        _splash_local, causal=causal, window=window, interpret=platform.interprets_kernels()
    )
    by_head = ("batch", "heads", None, None)
    kernel = platform.on_each_device(kernel, (by_head, by_head, by_head, ("batch", None)), by_head)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return kernel(query, key, value, sequence_ids).swapaxes(1, 2)


def splash_block(length: int, window: int = 0) -> int:
    """Returns the number of tokens of a block of splash attention for rows of `length` tokens.

    Blocks without an allowed pair are skipped: with a window, smaller blocks skip more of a row.
    """
    largest = max(window, 128) if window else length
    return next(size for size in (512, 256, 128) if length % size == 0 and size <= largest)


def kernel_keys(implementation: str, length: int, window: int) -> int:
    """Returns the number of keys that a kernel multiplies by a query in the middle of a row.

    With a window of `window` tokens to each side, 0 for none, they are those of the blocks within reach.
    """
    if implementation == "pallas":
        return tpu_attention.keys_in_reach(length, window)
    if not window:
        return length
    block = splash_block(length, window)
    return min(length, (2 * -(-window // block) + 1) * block)


def _splash_local(query, key, value, sequence_ids, *, causal, window, interpret):
    _, heads, length, _ = query.shape
    block = splash_block(length, window)
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
