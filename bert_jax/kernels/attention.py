"""Bidirectional attention limited to each sequence of a row, by an implementation chosen by name."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import dispatch, pallas_attention, platform
from bert_jax.kernels.dispatch import AttentionCase, Choice
from bert_jax.kernels.dropout import dropout, kernel_words

with epy.lazy_imports():  # programs of other platforms need not wait for it
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        splash_attention_kernel,
        splash_attention_mask,
    )

# google-research/bert adds -10000 to the logits of masked positions; in float32 the softmax of either is
# exactly 0.
_MASKED = -1e9


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
    """The attention to use, and why, for the platform and the mesh that are being traced for.

    Args:
      requested: "auto", "xla", "cudnn", "pallas" or "splash".
      dtype: of query, key and value.
      dropout_rate: on the attention probabilities.
      length: tokens of a row.
      heads, head_size: of the whole model.
      window: tokens to each side that a token sees; 0 for all.
      bias: whether one is added to the logits.

    Raises:
      UserError: a kernel is requested by name that cannot compute this.
    """
    heads //= platform.shards("heads")
    case = AttentionCase(dtype, length, heads, head_size, dropout_rate, bool(window), bias)
    return dispatch.choose("attention", requested, case, platform.target())


def adds_biases(implementation: str) -> bool:
    """Returns whether an implementation adds the biases of query, key and value itself."""
    return implementation == "pallas"


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    *,
    biases: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    implementation: str = "auto",
    causal: bool = False,
    window: int = 0,
    logit_bias: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_key: jax.Array | None = None,
) -> jax.Array:
    """Scaled dot-product attention in which a token sees the tokens of its own sequence only.

    Args:
      query, key, value: [B, L, N, D], float32 or bfloat16.
      sequence_ids: int32 [B, L]; tokens see each other where their ids are equal. Padding is 0 and sees
          padding.
      biases: float32 [N, D] each, still to be added to query, key and value. "pallas" does so itself, and
          takes their gradients where it has what they are the sums of.
      implementation: "xla", "cudnn", "pallas", "splash", or "auto" by `dispatch`. On a CPU "pallas" and
          "splash" are interpreted, slowly.
      causal: a token sees no later token.
      window: a token sees the tokens at most this far to each side, itself included; 0 for all. "xla" only.
      logit_bias: float32 [N, L, L], added to the logits; "xla" only.
      dropout_rate: on the attention probabilities, per element; "xla" and "pallas" only.
      dropout_key: None for no dropout.

    Returns:
      [B, L, N, D] of the query's dtype. Softmax is taken in float32.

    Raises:
      UserError: an implementation is requested by name that cannot compute this.
    """
    rate = dropout_rate if dropout_key is not None else 0.0
    chosen = choose_here(
        implementation, str(query.dtype), rate, *query.shape[1:], window=window, bias=logit_bias is not None
    ).implementation
    if chosen == "pallas":
        return _pallas(query, key, value, biases, sequence_ids, causal, rate, dropout_key)
    if biases is not None:
        query, key, value = (
            x + bias.astype(x.dtype) for x, bias in zip((query, key, value), biases, strict=True)
        )
    if chosen == "xla":
        weights = probabilities(query, key, sequence_ids, causal, window, logit_bias)
        return jnp.einsum("bnqk,bknd->bqnd", dropout(weights, dropout_key, rate), value)
    if chosen == "cudnn":
        return _cudnn(query, key, value, sequence_ids, causal)
    return _splash(query, key, value, sequence_ids, causal)


def _allowed(sequence_ids: jax.Array, causal: bool, window: int = 0) -> jax.Array:
    """bool [B, 1, L, L]: may the token of the third dimension see that of the fourth."""
    allowed = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]
    length = sequence_ids.shape[1]
    if causal:
        allowed &= jnp.tril(jnp.ones((length, length), bool))
    if window:
        allowed &= distances(length) <= window
    return allowed


def distances(length: int) -> jax.Array:
    """int32 [L, L]: how many tokens lie between two, plus one; 0 for a token and itself."""
    place = jnp.arange(length)
    return jnp.abs(place[:, None] - place)


def probabilities(
    query: jax.Array,
    key: jax.Array,
    sequence_ids: jax.Array,
    causal: bool = False,
    window: int = 0,
    logit_bias: jax.Array | None = None,
) -> jax.Array:
    """[B, N, L, L] of the query's dtype: how much each token attends to each other, rows summing to 1.

    Arguments as `attention`'s, which is these times the values.
    """
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    logits = jnp.einsum("bqnd,bknd->bnqk", query, key, preferred_element_type=jnp.float32)
    if logit_bias is not None:
        logits += logit_bias
    logits = jnp.where(_allowed(sequence_ids, causal, window), logits, _MASKED)
    return jax.nn.softmax(logits, axis=-1).astype(query.dtype)


def _cudnn(query, key, value, sequence_ids, causal):
    return jax.nn.dot_product_attention(
        query, key, value, mask=_allowed(sequence_ids, False), is_causal=causal, implementation="cudnn"
    )


def _pallas(query, key, value, biases, sequence_ids, causal, rate=0.0, dropout_key=None):
    rows, _, heads, head_size = query.shape
    if biases is None:
        biases = [jnp.zeros(query.shape[2:], jnp.float32)] * 3

    def kernel(query, key, value, sequence_ids, biases, words, heads):
        # A device with some of the heads hashes their masks by the numbers that they have in the whole row.
        first = jnp.broadcast_to(heads[:1], (words.shape[0], 1))
        return pallas_attention.row_attention(
            query, key, value, sequence_ids, biases, jnp.concatenate([words, first], axis=1),
            head_size=head_size, causal=causal, rate=rate, interpret=platform.interprets_kernels(),
        )  # fmt: skip

    by_head, by_row = ("batch", None, "heads"), ("batch", None)
    axes = (by_head, by_head, by_head, by_row, (None, "heads"), by_row, ("heads",))
    kernel = platform.on_each_device(kernel, axes, by_head)
    # Flat before the kernel's boundary, so that no array with so few lanes as a head's is laid out there.
    flat = [x.reshape(*x.shape[:2], -1) for x in (query, key, value)]
    biases = jnp.stack([bias.reshape(-1) for bias in biases])
    words = kernel_words(dropout_key if rate else None, rows)
    return kernel(*flat, sequence_ids, biases, words, jnp.arange(heads)).reshape(query.shape)


def _splash(query, key, value, sequence_ids, causal):
    kernel = functools.partial(_splash_local, causal=causal, interpret=platform.interprets_kernels())
    by_head = ("batch", "heads", None, None)
    kernel = platform.on_each_device(kernel, (by_head, by_head, by_head, ("batch", None)), by_head)
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    return kernel(query, key, value, sequence_ids).swapaxes(1, 2)


def _splash_local(query, key, value, sequence_ids, *, causal, interpret):
    _, heads, length, _ = query.shape
    block = next(size for size in (512, 256, 128) if length % size == 0)
    mask = (splash_attention_mask.CausalMask if causal else splash_attention_mask.FullMask)((length, length))
    sizes = splash_attention_kernel.BlockSizes(
        block_q=block,
        block_kv=block,
        block_kv_compute=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_kv_dkv_compute=block,
        use_fused_bwd_kernel=True,
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
