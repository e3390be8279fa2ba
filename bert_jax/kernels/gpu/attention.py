"""Attention as Pallas kernels for NVIDIA GPUs, compiled by Triton, with dropout of the probabilities.

The kernels take queries in blocks and go through the keys in steps, with a running maximum and sum of each
query (Dao 2023, "FlashAttention-2"). No [L, L] array is written: the forward pass saves one float32 number a
query, the logarithm of the sum of its exponentials, and the backward pass computes the probabilities again
from it. Queries, keys and values have the layout of the projections, [B, L, N, D].

A step is left out where the sequence ids of its tokens, the window or the order of tokens allow no pair with
the block: the first and the last step of every block are computed in advance, from the smallest and the
largest id of each. So a packed row costs about as much as its sequences alone.

Dropout is bitwise equal to `dropout`: the mask is hashed from the element's position in both passes. The
backward pass goes through every pair twice, for the gradient of the queries and for those of keys and values,
and so needs no atomic sums, whose order differs from run to run.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import AttentionCase
from bert_jax.kernels.dropout import keep, line_words, place_words, threshold
from bert_jax.kernels.products import dot
from bert_jax.kernels.xla_attention import MASKED

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

# Number of products of D by each pair of a query and a key, forward and backward.
_FORWARD, _BACKWARD = 2, 7
# Start of the name scope of a kernel, which ends with the FLOPs of its products. The kernel is opaque to XLA,
# so a compiled program would not show them otherwise.
FLOPS_SCOPE = "triton_attention_flops_"

# Words, sequence ids and slopes, as of `flash_attention`.
ByRow = tuple[jax.Array, jax.Array, jax.Array | None]


def flash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    words: jax.Array,
    slopes: jax.Array | None = None,
    *,
    causal: bool = False,
    window: int = 0,
    rate: float = 0.0,
    interpret: bool = False,
) -> jax.Array:
    """Returns scaled dot-product attention within each sequence of a row.

    Args:
        query: [B, L, N, D], float32, bfloat16 or float16, of a shape that `dispatch` allows for this kernel.
        key: as `query`.
        value: as `query`.
        sequence_ids: int32 [B, L]; tokens attend to each other where their ids are equal.
        words: int32 [B, 5] for dropout: those of `dropout.kernel_words`, and the index of the first head of
            this device in the whole row.
        slopes: float32 [N], see `bert_jax.kernels.attention.attention`.
        causal: whether a token attends to no later token.
        window: a token attends to the tokens at most this far to each side and to itself; 0 for all.
        rate: dropout rate of the probabilities.
        interpret: whether to run without a GPU, which is slow.

    Returns:
        [B, L, N, D] in the dtype of the query. Softmax is computed in float32.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    _, length, _, head_size = query.shape
    dispatch.check_case("attention", "triton", AttentionCase(length=length, head_size=head_size))
    how = How(causal, window, rate, slopes is not None, interpret)
    return _attend(how, query, key, value, (words, sequence_ids, slopes))


@dataclasses.dataclass(frozen=True)
class How:
    """How attention is computed; `flash_attention` describes the fields."""

    causal: bool
    window: int
    rate: float
    has_slopes: bool
    interpret: bool


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel divides a row.

    Attributes:
        block: number of tokens that a program of the grid computes the results of.
        step: number of tokens of the other side that it takes at a time.
        warps: number of warps of a program.
        stages: number of steps whose loads are in flight.
    """

    block: int
    step: int
    warps: int
    stages: int


def forward_blocks(length: int, head_size: int, itemsize: int) -> Blocks:
    """Returns the blocks of the forward pass for rows of `length` tokens."""
    wide = head_size * itemsize > 128  # more than a head of 64 in bfloat16
    return _divide(length, 64 if wide else 128, 64, 4, 2 if wide else 3)


def backward_blocks(length: int, head_size: int, itemsize: int) -> Blocks:
    """Returns the blocks of the backward pass for rows of `length` tokens."""
    size = head_size * itemsize
    return _divide(length, 64, 32 if size > 128 else 64, 8 if size > 256 else 4, 2)


def _divide(length, block, step, warps, stages):
    """Returns blocks of at most this many tokens; both sizes divide the length."""
    block, step = (math.gcd(length, size) for size in (block, step))
    return Blocks(block, step, warps, stages)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, query, key, value, by_row):
    return _attend_fwd(how, query, key, value, by_row)[0]


def _attend_fwd(how, query, key, value, by_row):
    _, length, _, head_size = query.shape
    blocks = forward_blocks(length, head_size, query.dtype.itemsize)
    out, totals = forward(how, blocks, (query, key, value), by_row)
    return out, (query, key, value, by_row, out, totals)


def _attend_bwd(how, residuals, gradient):
    query, key, value, by_row, out, totals = residuals
    _, length, _, head_size = query.shape
    blocks = backward_blocks(length, head_size, query.dtype.itemsize)
    # This sum over D is also the one over keys that `backward` needs.
    inner = jnp.sum(out.astype(jnp.float32) * gradient.astype(jnp.float32), axis=-1).swapaxes(1, 2)
    gradients = backward(how, blocks, (query, key, value, gradient), by_row, totals, inner)
    return *gradients, (None, None, None)


_attend.defvjp(_attend_fwd, _attend_bwd)


def forward(how: How, blocks: Blocks, arrays: Sequence[jax.Array], by_row: ByRow) -> list[jax.Array]:
    """Returns attention, [B, L, N, D], and `totals` for `backward`, float32 [B, N, L].

    Args:
        how: the options.
        blocks: how a row is divided.
        arrays: query, key and value, as of `flash_attention`.
        by_row: its words, sequence ids and slopes.
    """
    return _call(how, blocks, _spans(how, by_row[1], blocks), by_row, arrays)


def backward(
    how: How, blocks: Blocks, arrays: Sequence[jax.Array], by_row: ByRow, totals: jax.Array, inner: jax.Array
) -> list[jax.Array]:
    """Returns the gradients of query, key and value, [B, L, N, D] each.

    Args:
        how: as of `forward`.
        blocks: as of `forward`.
        arrays: query, key, value, and the gradient of attention.
        by_row: as of `forward`.
        totals: binary logarithms of the sums of exponentials of each query.
        inner: sums over keys of probabilities and their gradients, float32 [B, N, L].
    """
    spans = [_spans(how, by_row[1], blocks, of_keys) for of_keys in (False, True)]
    return _call(how, blocks, jnp.concatenate(spans, axis=-1), by_row, arrays, (totals, inner))


def _near(how, length, blocks, of_keys=False):
    """Returns bool [blocks, steps]: whether the distances of a block and a step allow any pair.

    Blocks are of queries and steps of keys, or with `of_keys` the other way round.
    """
    block, step = (np.arange(0, length, size) for size in (blocks.block, blocks.step))
    near = np.ones((block.size, step.size), bool)
    block, step = block[:, None], step[None]
    last_of_block, last_of_step = block + blocks.block - 1, step + blocks.step - 1
    if how.causal:
        near &= (block <= last_of_step) if of_keys else (step <= last_of_block)
    if how.window:
        near &= (step - last_of_block <= how.window) & (block - last_of_step <= how.window)
    return near


def _spans(how, sequence_ids, blocks, of_keys=False):
    """Returns int32 [B, blocks, 2]: the first step of each block that is computed, and the end of the last.

    Every step that has a token of a sequence of the block is between them, and for sequences in the order of
    their ids few others are.
    """
    rows, length = sequence_ids.shape
    # Padding is at the end of a row: as the largest id, it leaves the ids of a row in order.
    ids = jnp.where(sequence_ids == 0, np.iinfo(np.int32).max, sequence_ids)
    block, step = (ids.reshape(rows, -1, size) for size in (blocks.block, blocks.step))
    least, most = (f(block, axis=2)[:, :, None] for f in (jnp.min, jnp.max))
    met = (least <= jnp.max(step, axis=2)[:, None]) & (jnp.min(step, axis=2)[:, None] <= most)
    met &= _near(how, length, blocks, of_keys)
    first, after = (jnp.argmax(x, axis=2) for x in (met, met[:, :, ::-1]))
    return jnp.stack([first, met.shape[2] - after], axis=2).astype(jnp.int32)


def _call(how, blocks, spans, by_row, arrays, by_query=()):
    """Runs the kernel of a pass over a grid of (blocks of a row, heads, rows of the batch).

    A program reads what its head has of a row, and writes its block of it.

    Args:
        how: what is computed.
        blocks: how a row is divided.
        spans: what `_spans` returns, for one or both passes over a row.
        by_row: as of `forward`.
        arrays: arrays [B, L, N, D].
        by_query: the float32 arrays [B, N, L] of the backward pass.
    """
    kernel, products, results = (
        (_attention_backward, _BACKWARD, 3) if by_query else (_attention_forward, _FORWARD, 1)
    )
    batch, length, heads, head_size = arrays[0].shape
    words, sequence_ids, slopes = by_row
    of_row, slopes = (words, spans, sequence_ids), [slopes] * how.has_slopes
    whole = [
        *(pl.BlockSpec((None, *x.shape[1:]), _at_row(x.ndim)) for x in of_row),
        *[pl.BlockSpec((None,), lambda i, head, row: (head,))] * how.has_slopes,
        *[pl.BlockSpec((None, length, None, head_size), lambda i, head, row: (row, 0, head, 0))]
        * len(arrays),
        *[pl.BlockSpec((None, None, length), lambda i, head, row: (row, head, 0))] * len(by_query),
    ]
    size = blocks.block
    parts = [pl.BlockSpec((None, size, None, head_size), lambda i, head, row: (row, i, head, 0))] * results
    shapes = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    if not by_query:
        parts.append(pl.BlockSpec((None, None, size), lambda i, head, row: (row, head, i)))
        shapes.append(jax.ShapeDtypeStruct((batch, heads, length), jnp.float32))
    call = pl.pallas_call(
        functools.partial(kernel, how, blocks),
        grid=(length // size, heads, batch),
        in_specs=whole,
        out_specs=parts,
        out_shape=shapes,
        compiler_params=plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages),
        interpret=how.interpret,
    )
    # Of rows of one sequence: how many steps the ids leave out is known only when the kernel runs.
    pairs = batch * heads * int(_near(how, length, blocks).sum()) * size * blocks.step
    with jax.named_scope(f"{FLOPS_SCOPE}{2 * products * pairs * head_size}"):
        return call(*of_row, *slopes, *arrays, *by_query)


def _at_row(dimensions):
    return lambda i, head, row: (row, *[0] * (dimensions - 1))


def _attention_forward(how, blocks, words, spans, ids, *arrays):
    slope, (query, key, value, out, totals) = _slope_of(how, arrays)
    block = pl.program_id(0)
    queries = _Tokens.of(ids, block, blocks.block)
    of_row, q = _words_of(words), query[queries.slice]

    def add(number, state):
        most, total, context = state
        keys = _Tokens.of(ids, number, blocks.step)
        logits = _logits(how, slope, q, key[keys.slice], queries, keys)
        largest = jnp.maximum(most, jnp.max(logits, axis=1))
        exponentials, before = jnp.exp2(logits - largest[:, None]), jnp.exp2(most - largest)
        kept = _kept(how, of_row, queries, keys, key.shape[0])
        dropped = _drop(how, exponentials, kept).astype(value.dtype)
        context = context * before[:, None] + dot(dropped, value[keys.slice], (1, 0))
        return largest, total * before + jnp.sum(exponentials, axis=1), context

    # A step in which a query has no key adds to its sums what the next one with a key multiplies by 0.
    zeros = jnp.zeros(q.shape, jnp.float32)
    start = (jnp.full(q.shape[:1], MASKED, jnp.float32), jnp.zeros(q.shape[:1], jnp.float32), zeros)
    most, total, context = jax.lax.fori_loop(spans[block, 0], spans[block, 1], add, start)
    out[...] = (context / total[:, None]).astype(out.dtype)
    totals[...] = most + jnp.log2(total)


def _attention_backward(how, blocks, words, spans, ids, *arrays):
    slope, arrays = _slope_of(how, arrays)
    query, key, value, gradient, totals, inner, d_query, d_key, d_value = arrays
    block, length, dtype = pl.program_id(0), key.shape[0], query.dtype
    own, of_row = _Tokens.of(ids, block, blocks.block), _words_of(words)
    q, k, v, g = (x[own.slice] for x in (query, key, value, gradient))
    total_of_own, inner_of_own = totals[own.slice][:, None], inner[own.slice][:, None]
    zeros, scale = jnp.zeros(q.shape, jnp.float32), q.shape[1] ** -0.5

    def add_keys(number, sums):
        keys = _Tokens.of(ids, number, blocks.step)
        of_step = key[keys.slice]
        weights = jnp.exp2(_logits(how, slope, q, of_step, own, keys) - total_of_own)
        kept = _kept(how, of_row, own, keys, length)
        d_weights = _drop(how, dot(g, value[keys.slice], (1, 1)), kept)
        d_logits = (weights * (d_weights - inner_of_own)).astype(dtype)
        return sums + dot(d_logits, of_step, (1, 0))

    def add_queries(number, sums):
        # The pairs are [keys, queries] here, so that no product needs the transpose of a result.
        queries = _Tokens.of(ids, number, blocks.step)
        of_step, g = query[queries.slice], gradient[queries.slice]
        total_of_step, inner_of_step = totals[queries.slice][None], inner[queries.slice][None]
        logits = _logits(how, slope, k, of_step, queries, own, keys_first=True)
        weights = jnp.exp2(logits - total_of_step)
        kept = _kept(how, of_row, queries, own, length, keys_first=True)
        d_v = sums[1] + dot(_drop(how, weights, kept).astype(dtype), g, (1, 0))
        d_weights = _drop(how, dot(v, g, (1, 1)), kept)
        d_logits = (weights * (d_weights - inner_of_step)).astype(dtype)
        return sums[0] + dot(d_logits, of_step, (1, 0)), d_v

    d_q = jax.lax.fori_loop(spans[block, 0], spans[block, 1], add_keys, zeros)
    d_query[...] = (d_q * scale).astype(dtype)
    d_k, d_v = jax.lax.fori_loop(spans[block, 2], spans[block, 3], add_queries, (zeros, zeros))
    d_key[...] = (d_k * scale).astype(dtype)
    d_value[...] = d_v.astype(dtype)


def _words_of(words):
    """Returns what the dropout of a head is hashed from: the words of its row, and its index in the row."""
    return *(words[i].astype(jnp.uint32) for i in range(4)), words[4] + pl.program_id(1)


def _slope_of(how, arrays):
    """Returns the slope of a head, for logits as powers of 2, and the arrays behind it; None for no slope."""
    return (arrays[0][...] * math.log2(math.e), arrays[1:]) if how.has_slopes else (None, arrays)


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """Some tokens of a row: where they are in it, their positions and their sequence ids."""

    slice: Any
    places: jax.Array
    ids: jax.Array

    @classmethod
    def of(cls, ids, number, size):
        """Returns tokens number * size, ..., (number + 1) * size - 1 of a row."""
        start = jnp.asarray(number * size, jnp.int32)
        part = pl.ds(start, size)
        return cls(part, start + jnp.arange(size), ids[part])


def _pairs(queries, keys, keys_first):
    """Returns arrays [queries] and [keys] in the shapes [queries, 1] and [1, keys], or transposed."""
    return (queries[None], keys[:, None]) if keys_first else (queries[:, None], keys[None])


def _logits(how, slope, left, right, queries, keys, keys_first=False):
    """Returns the logits of all pairs as powers of 2, float32 [queries, keys], or transposed."""
    logits = dot(left, right, (1, 1)) * (left.shape[1] ** -0.5 * math.log2(math.e))
    query_ids, key_ids = _pairs(queries.ids, keys.ids, keys_first)
    allowed = query_ids == key_ids
    query, key = _pairs(queries.places, keys.places, keys_first)
    if how.causal:
        allowed &= key <= query
    if how.window:
        allowed &= jnp.abs(key - query) <= how.window
    if how.has_slopes:
        logits -= slope * jnp.abs(key - query).astype(jnp.float32)
    return jnp.where(allowed, logits, MASKED)


def _kept(how, of_row, queries, keys, length, keys_first=False):
    """Returns whether dropout keeps the probability of each pair; None without dropout."""
    if not how.rate:
        return None
    *words, head = of_row
    lines = line_words((head * length + queries.places).astype(jnp.uint32), *words[:2])
    places = place_words(keys.places.astype(jnp.uint32), *words[2:])
    return keep(*_pairs(lines, places, keys_first), threshold(how.rate))


def _drop(how, x, kept):
    return x if kept is None else jnp.where(kept, x * (1 / (1 - how.rate)), 0.0)
