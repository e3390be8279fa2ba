"""Attention as a single Pallas kernel for TPU, for rows that fit into vector memory.

Flash kernels are made for sequences that do not fit: they iterate over blocks of keys with running maxima,
and need [B, N, L, D] with D padded to 128 lanes, which costs more in copies around the kernel than the kernel
itself. A row of BERT does fit. Therefore this kernel takes queries, keys and values in the layout of the
projections, [B, L, N D], and processes 128 lanes at a time, which is one or more heads. A product for one
head is computed by setting the lanes of the other heads to zero; the matrix unit would have been idle for
them anyway. No [L, L] array leaves the chip, and the backward pass computes the probabilities again from the
three inputs. The biases of the inputs are added here, so that their gradients, which are sums over all
tokens, are computed together with the gradients of the inputs: separately they would be three more passes
over HBM. Dropout of the probabilities is bitwise equal to `dropout`: the mask is hashed from the element's
position in both passes.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import LANES, LONGEST_ROW, AttentionCase
from bert_jax.kernels.dropout import keep, threshold

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_MASKED = -1e9


def row_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    biases: jax.Array,
    words: jax.Array,
    *,
    head_size: int,
    causal: bool = False,
    rate: float = 0.0,
    interpret: bool = False,
) -> jax.Array:
    """Returns scaled dot-product attention within each sequence of a row.

    Args:
        query: [B, L, N D], float32 or bfloat16, of a shape that `dispatch` allows for this kernel.
        key: as `query`.
        value: as `query`.
        sequence_ids: int32 [B, L]; tokens attend to each other where their ids are equal.
        biases: float32 [3, N D], added to query, key and value.
        words: int32 [B, 3] for dropout: the two values of `dropout.kernel_words`, and the index of the first
            head of this device in the whole row.
        head_size: D.
        causal: whether a token attends to no later token.
        rate: dropout rate of the probabilities.
        interpret: whether to run without a TPU, which is slow.

    Returns:
        [B, L, N D] in the dtype of the query. Softmax is computed in float32.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    _, length, width = query.shape
    case = AttentionCase(length=length, heads=width // head_size, head_size=head_size)
    dispatch.check_case("attention", "pallas", case)
    how = _How(head_size, causal, rate, interpret)
    return _attend(how, query, key, value, biases, (words, sequence_ids))


@dataclasses.dataclass(frozen=True)
class _How:
    head_size: int
    causal: bool
    rate: float
    interpret: bool

    @property
    def heads(self) -> int:
        """Returns the number of heads in a block of 128 lanes."""
        return LANES // self.head_size


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, query, key, value, biases, by_row):
    return _call(how, _forward, 2, (query, key, value), 1, biases, by_row)[0]


def _attend_fwd(how, *arguments):
    return _attend(how, *arguments), arguments


def _attend_bwd(how, residuals, gradient):
    *arrays, biases, by_row = residuals
    *gradients, sums = _call(how, _backward, 5, (*arrays, gradient), 3, biases, by_row, sums=True)
    return *gradients, jnp.sum(sums, axis=0), (None, None)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _call(how, kernel, products, arrays, results, biases, by_row, sums=False):
    """Runs a kernel over a grid of (rows of the batch, blocks of 128 lanes).

    `products` is the number of [L, L] by D products per head. It returns `results` arrays of the shape of the
    first argument, and with `sums` one more array, float32 [steps, 3, N D].
    """
    words, sequence_ids = by_row
    batch, length, width = arrays[0].shape
    rows = _rows_a_step(batch, length)
    block = pl.BlockSpec((rows, length, LANES), lambda b, lanes: (b, 0, lanes))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    cost = pl.CostEstimate(
        flops=2 * products * batch * width * length * length,
        transcendentals=batch * (width // how.head_size) * length * length,
        bytes_accessed=(len(arrays) + results) * arrays[0].size * arrays[0].dtype.itemsize,
    )
    if sums:
        out_specs.append(pl.BlockSpec((1, 3, LANES), lambda b, lanes: (b, 0, lanes)))
        out_shape.append(jax.ShapeDtypeStruct((batch // rows, 3, width), jnp.float32))
    return pl.pallas_call(
        functools.partial(kernel, how),
        grid=(batch // rows, width // LANES),
        in_specs=[
            pl.BlockSpec((rows, 1, 3), lambda b, lanes: (b, 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((rows, length, 1), lambda b, lanes: (b, 0, 0)),
            pl.BlockSpec((rows, 1, length), lambda b, lanes: (b, 0, 0)),
            pl.BlockSpec((3, LANES), lambda b, lanes: (0, lanes)),
            *[block] * len(arrays),
        ],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=cost,
        interpret=how.interpret,
    )(words[:, None], sequence_ids[:, :, None], sequence_ids[:, None, :], biases, *arrays)


def _rows_a_step(batch: int, length: int) -> int:
    """Returns how many rows a step of the grid takes.

    Short rows are grouped, because the overhead of a step would otherwise exceed its work.
    """
    rows = max(1, LONGEST_ROW // length)
    while batch % rows:
        rows -= 1
    return rows


def _forward(how, words, query_ids, key_ids, biases, query, key, value, out):
    for row in range(query.shape[0]):
        allowed = _allowed(query_ids[row], key_ids[row], how.causal)
        queries, keys, values = _biased(biases, query[row], key[row], value[row])
        total = jnp.zeros(out.shape[1:], jnp.float32)
        for head, lanes in enumerate(_heads(how)):
            exponentials, denominators = _softmax_parts(how, queries, keys, allowed, lanes)
            exponentials = _drop(how, exponentials, words, row, head)
            context = _product(exponentials.astype(values.dtype), _only(values, lanes), (1, 0))
            total += context / denominators
        out[row] = total.astype(out.dtype)


def _backward(how, words, query_ids, key_ids, biases, query, key, value, gradient, *results):
    *gradients, sums = results
    dtype = query.dtype
    scale = how.head_size**-0.5
    sums[...] = jnp.zeros(sums.shape, jnp.float32)
    for row in range(query.shape[0]):
        allowed = _allowed(query_ids[row], key_ids[row], how.causal)
        queries, keys, values = _biased(biases, query[row], key[row], value[row])
        totals = [jnp.zeros(queries.shape, jnp.float32) for _ in range(3)]
        for head, lanes in enumerate(_heads(how)):
            exponentials, denominators = _softmax_parts(how, queries, keys, allowed, lanes)
            weights = exponentials / denominators
            of_head = _only(gradient[row], lanes)
            d_weights = _drop(how, _product(of_head, values, (1, 1)), words, row, head)
            inner = jnp.sum(weights * d_weights, axis=1, keepdims=True)
            d_logits = (weights * (d_weights - inner)).astype(dtype)
            totals[0] += _product(d_logits, _only(keys, lanes), (1, 0))
            totals[1] += _product(d_logits, _only(queries, lanes), (0, 0))
            kept = _drop(how, weights, words, row, head)
            totals[2] += _product(kept.astype(dtype), of_head, (0, 0))
        for place, (total, factor) in enumerate(zip(totals, (scale, scale, 1.0), strict=True)):
            gradients[place][row] = (total * factor).astype(dtype)
            sums[0, place : place + 1] += jnp.sum(total * factor, axis=0, keepdims=True)


def _drop(how, x, words, row, head):
    """Applies dropout to the probabilities, or their gradient, of one head, float32 [L, L]."""
    if not how.rate:
        return x
    first, second, first_head = (words[row, 0, i] for i in range(3))
    length = x.shape[0]
    head = first_head + pl.program_id(1) * how.heads + head
    query, key = (jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    index = ((head * length + query) * length + key).astype(jnp.uint32)
    kept = keep(index, first.astype(jnp.uint32), second.astype(jnp.uint32), threshold(how.rate))
    return jnp.where(kept, x * (1 / (1 - how.rate)), 0.0)


def _biased(biases, *arrays):
    """Returns each array [L, 128] plus its bias for the lanes of the block."""
    return [
        (x.astype(jnp.float32) + biases[place : place + 1]).astype(x.dtype) for place, x in enumerate(arrays)
    ]


def _heads(how):
    """Returns bool [1, 128] for each head of a block: which lanes belong to it."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [(lane >= first) & (lane < first + how.head_size) for first in range(0, LANES, how.head_size)]


def _only(x, lanes):
    return jnp.where(lanes, x, jnp.zeros_like(x))


def _product(left, right, contracted):
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _allowed(query_ids, key_ids, causal):
    """Returns bool [L, L], where queries may attend to keys, from ids int32 [L, 1] and [1, L]."""
    allowed = query_ids == key_ids
    if causal:
        length = allowed.shape[0]
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (length, length), axis) for axis in (0, 1))
        allowed &= column <= row
    return allowed


def _softmax_parts(how, query, key, allowed, lanes):
    """Returns float32 exponentials [L, L] and their row sums [L, 1]; their quotient is the probabilities."""
    logits = _product(_only(query, lanes), key, (1, 1)) * how.head_size**-0.5
    logits = jnp.where(allowed, logits, _MASKED)
    exponentials = jnp.exp(logits - jnp.max(logits, axis=1, keepdims=True))
    return exponentials, jnp.sum(exponentials, axis=1, keepdims=True)
