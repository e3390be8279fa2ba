"""Attention as one Pallas kernel for TPU, for rows that fit the vector memory whole.

The flash kernels are made for sequences that do not fit: they go over blocks of keys with running maxima, and
want [B, N, L, D] with D padded to 128 lanes, which costs more in copies around the kernel than the kernel
itself. A row of BERT does fit. So this one takes queries, keys and values as the projections leave them,
[B, L, N D], 128 lanes at a time: as many heads as these hold. A head's part of a product is picked by zeros
in the other heads' lanes, which the matrix unit would have been idle for. Nothing of [L, L] leaves the chip,
and the backward pass computes the probabilities again from the three inputs. Their biases are added here, so
that the gradients of these, sums over all tokens, are taken where the gradients of the inputs are made: by
themselves they are three more passes over HBM.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bert_jax.errors import UserError

LANES = 128
LONGEST = 512  # the [L, L] arrays of the backward pass, in float32, are in vector memory together
_MASKED = -1e9


def supports(length: int, heads: int, head_size: int) -> bool:
    """Whether there is a kernel for rows of this length and heads of this size."""
    return (
        length % LANES == 0
        and length <= LONGEST
        and LANES % head_size == 0
        and (heads * head_size) % LANES == 0
    )


def row_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    biases: jax.Array,
    *,
    head_size: int,
    causal: bool = False,
    interpret: bool = False,
) -> jax.Array:
    """Scaled dot-product attention within each sequence of a row.

    Args:
      query, key, value: [B, L, N D], float32 or bfloat16, of shapes that `supports` has.
      sequence_ids: int32 [B, L]; tokens see each other where their ids are equal.
      biases: float32 [3, N D], to be added to query, key and value.
      head_size: D.
      causal: a token sees no later token.
      interpret: run without a TPU, slowly.

    Returns:
      [B, L, N D] of the query's dtype. Softmax is taken in float32.

    Raises:
      UserError: there is no kernel for these shapes.
    """
    _, length, width = query.shape
    if not supports(length, width // head_size, head_size):
        raise UserError(
            f"attention=pallas has no kernel for rows of {length} tokens and {width // head_size} heads of "
            f"{head_size} a device: it needs rows of a multiple of {LANES} up to {LONGEST} and heads that "
            f"fill {LANES} lanes; use attention=splash, or xla"
        )
    return _attend(query, key, value, biases, sequence_ids, head_size, causal, interpret)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6, 7))
def _attend(query, key, value, biases, sequence_ids, head_size, causal, interpret):
    kernel = functools.partial(_forward, head_size=head_size, causal=causal)
    arrays = (query, key, value)
    return _call(kernel, 2, arrays, 1, biases, sequence_ids, head_size, interpret)[0]


def _attend_fwd(query, key, value, biases, sequence_ids, head_size, causal, interpret):
    out = _attend(query, key, value, biases, sequence_ids, head_size, causal, interpret)
    return out, (query, key, value, biases, sequence_ids)


def _attend_bwd(head_size, causal, interpret, residuals, gradient):
    *arrays, biases, sequence_ids = residuals
    kernel = functools.partial(_backward, head_size=head_size, causal=causal)
    arrays.append(gradient)
    *gradients, sums = _call(kernel, 5, arrays, 3, biases, sequence_ids, head_size, interpret, sums=True)
    return *gradients, jnp.sum(sums, axis=0), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def _call(kernel, products, arrays, results, biases, sequence_ids, head_size, interpret, sums=False):
    """The kernel over (some rows of the batch, 128 lanes): `results` arrays like the first; with `sums` one
    more, float32 [steps, 3, N D].

    `products` are those of a head, [L, L] by D.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    batch, length, width = arrays[0].shape
    rows = _rows_a_step(batch, length)
    block = pl.BlockSpec((rows, length, LANES), lambda b, lanes: (b, 0, lanes))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    heads = width // head_size
    cost = pl.CostEstimate(
        flops=2 * products * batch * heads * length * length * head_size,
        transcendentals=batch * heads * length * length,
        bytes_accessed=(len(arrays) + results) * arrays[0].size * arrays[0].dtype.itemsize,
    )
    if sums:
        out_specs.append(pl.BlockSpec((1, 3, LANES), lambda b, lanes: (b, 0, lanes)))
        out_shape.append(jax.ShapeDtypeStruct((batch // rows, 3, width), jnp.float32))
    return pl.pallas_call(
        kernel,
        grid=(batch // rows, width // LANES),
        in_specs=[
            pl.BlockSpec((rows, length, 1), lambda b, lanes: (b, 0, 0)),
            pl.BlockSpec((rows, 1, length), lambda b, lanes: (b, 0, 0)),
            pl.BlockSpec((3, LANES), lambda b, lanes: (0, lanes)),
            *[block] * len(arrays),
        ],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=cost,
        interpret=interpret,
    )(sequence_ids[:, :, None], sequence_ids[:, None, :], biases, *arrays)


def _rows_a_step(batch: int, length: int) -> int:
    """Short rows go several at a time, or the steps of the grid would cost more than what they do."""
    rows = max(1, LONGEST // length)
    while batch % rows:
        rows -= 1
    return rows


def _forward(query_ids, key_ids, biases, query, key, value, out, *, head_size, causal):
    for row in range(query.shape[0]):
        allowed = _allowed(query_ids[row], key_ids[row], causal)
        queries, keys, values = _biased(biases, query[row], key[row], value[row])
        total = jnp.zeros(out.shape[1:], jnp.float32)
        for lanes in _heads(head_size):
            exponentials, denominators = _softmax_parts(queries, keys, allowed, lanes, head_size)
            context = _product(exponentials.astype(values.dtype), _only(values, lanes), (1, 0))
            total += context / denominators
        out[row] = total.astype(out.dtype)


def _backward(query_ids, key_ids, biases, query, key, value, gradient, *results, head_size, causal):
    *gradients, sums = results
    dtype = query.dtype
    scale = head_size**-0.5
    sums[...] = jnp.zeros(sums.shape, jnp.float32)
    for row in range(query.shape[0]):
        allowed = _allowed(query_ids[row], key_ids[row], causal)
        queries, keys, values = _biased(biases, query[row], key[row], value[row])
        totals = [jnp.zeros(queries.shape, jnp.float32) for _ in range(3)]
        for lanes in _heads(head_size):
            exponentials, denominators = _softmax_parts(queries, keys, allowed, lanes, head_size)
            weights = exponentials / denominators
            of_head = _only(gradient[row], lanes)
            d_weights = _product(of_head, values, (1, 1))
            inner = jnp.sum(weights * d_weights, axis=1, keepdims=True)
            d_logits = (weights * (d_weights - inner)).astype(dtype)
            totals[0] += _product(d_logits, _only(keys, lanes), (1, 0))
            totals[1] += _product(d_logits, _only(queries, lanes), (0, 0))
            totals[2] += _product(weights.astype(dtype), of_head, (0, 0))
        for place, (total, factor) in enumerate(zip(totals, (scale, scale, 1.0), strict=True)):
            gradients[place][row] = (total * factor).astype(dtype)
            sums[0, place : place + 1] += jnp.sum(total * factor, axis=0, keepdims=True)


def _biased(biases, *arrays):
    """[L, 128] each, with the block's lanes of its bias."""
    return [
        (x.astype(jnp.float32) + biases[place : place + 1]).astype(x.dtype) for place, x in enumerate(arrays)
    ]


def _heads(head_size):
    """bool [1, 128] for each head of a block: which lanes are its own."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [(lane >= first) & (lane < first + head_size) for first in range(0, LANES, head_size)]


def _only(x, lanes):
    return jnp.where(lanes, x, jnp.zeros_like(x))


def _product(left, right, contracted):
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _allowed(query_ids, key_ids, causal):
    """bool [L, L] of int32 [L, 1] and [1, L]."""
    allowed = query_ids == key_ids
    if causal:
        length = allowed.shape[0]
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
        allowed &= column <= row
    return allowed


def _softmax_parts(query, key, allowed, lanes, head_size):
    """float32 [L, L] exponentials and [L, 1] sums of them, whose quotient is a head's probabilities."""
    logits = _product(_only(query, lanes), key, (1, 1)) * head_size**-0.5
    logits = jnp.where(allowed, logits, _MASKED)
    exponentials = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    return exponentials, jnp.sum(exponentials, axis=1, keepdims=True)
