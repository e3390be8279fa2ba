"""Attention as a single Pallas kernel for TPU, for rows that fit into vector memory.

Flash kernels are made for sequences that do not fit: they iterate over blocks of keys with running maxima,
and need [B, N, L, D] with D padded to 128 lanes, which costs more in copies around the kernel than the kernel
itself. A row of BERT does fit. Therefore this kernel takes queries, keys and values in the layout of the
projections, [B, L, N D], and processes 128 lanes at a time, which is one or more heads. A product for one
head is computed by setting the lanes of the other heads to zero; the matrix unit would have been idle for
them anyway. No [L, L] array leaves the chip, and the backward pass computes the probabilities again from the
three inputs and one number for each query. Those arrays have the keys along sublanes and the queries along
lanes: sums over keys are then sums of registers, and what is transposed for products is [L, 128] arrays
alone. The biases of the inputs are added here, so that their gradients, which are sums over all tokens, are
computed together with the gradients of the inputs: separately they would be three more passes over HBM.
Queries and keys are turned here, too, for which operations on [B, L, N, D] would take longer than the kernel.
Dropout of the probabilities is bitwise equal to `dropout`: the mask is hashed from the element's position in
both passes.

Long rows are taken in blocks of queries, and so is local attention, where a token attends to the tokens at
most a window away, each block with the keys that a query of it may attend to, so that still longer rows fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import dispatch
from bert_jax.kernels.dispatch import LANES, LONGEST_WHOLE_ROW, AttentionCase
from bert_jax.kernels.dropout import keep, keep_lines, pair, threshold

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_MASKED = -1e9
_LN_2 = math.log(2)
_LARGEST_STEP = 1024  # tokens
_ALIGNED = 64  # tokens, of the keys that a block of queries of a local layer reads


def row_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    biases: jax.Array,
    words: jax.Array,
    tables: Sequence[jax.Array] = (),
    *,
    head_size: int,
    causal: bool = False,
    window: int = 0,
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
        tables: those of `rotary.lane_tables` for 128 lanes, by which query and key are turned after their
            biases are added; none to turn nothing.
        head_size: D.
        causal: whether a token attends to no later token.
        window: a token attends to the tokens at most this far to each side and to itself; 0 for all.
        rate: dropout rate of the probabilities.
        interpret: whether to run without a TPU, which is slow.

    Returns:
        [B, L, N D] in the dtype of the query. Softmax is computed in float32.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    _, length, width = query.shape
    case = AttentionCase(length=length, heads=width // head_size, head_size=head_size, window=bool(window))
    dispatch.check_case("attention", "pallas", case)
    how = _How(head_size, causal, window, rate, interpret)
    return _attend(how, query, key, value, biases, (words, sequence_ids, tuple(tables)))


@dataclasses.dataclass(frozen=True)
class _How:
    head_size: int
    causal: bool
    window: int
    rate: float
    interpret: bool

    @property
    def heads(self) -> int:
        """Returns the number of heads in a block of 128 lanes."""
        return LANES // self.head_size


def keys_in_reach(length: int, window: int) -> int:
    """Returns how many keys of a row the kernel multiplies by a query: with a window, some blocks of them."""
    reach = -(-window // _ALIGNED) * _ALIGNED
    return min(length, LANES + 2 * reach) if window else length


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, query, key, value, biases, by_row):
    return _attend_fwd(how, query, key, value, biases, by_row)[0]


def _attend_fwd(how, *arguments):
    *arrays, biases, by_row = arguments
    out, statistics = _call(how, _forward, 2, arrays, 1, biases, by_row)
    return out, (*arguments, statistics)


def _attend_bwd(how, residuals, gradient):
    *arrays, biases, by_row, statistics = residuals
    *gradients, sums = _call(how, _backward, 5, (*arrays, gradient), 3, biases, by_row, statistics)
    return *gradients, jnp.sum(sums, axis=0), (None, None, (None,) * len(by_row[2]))


_attend.defvjp(_attend_fwd, _attend_bwd)


def _call(how, kernel, products, arrays, results, biases, by_row, statistics=None):
    """Runs a kernel over a grid of (rows of the batch, blocks of 128 lanes).

    `products` is the number of products by D of each pair of a query and a key, per head. It returns
    `results` arrays of the shape of the first argument, and one more: the forward kernel the `statistics`
    that the backward kernel takes, binary logarithms of the softmax's denominators, float32
    [B, N D / 128, heads of a block, L]; the backward kernel the sums of its results over tokens, float32
    [steps, 3, N D].
    """
    words, sequence_ids, tables = by_row
    batch, length, width = arrays[0].shape
    rows = _rows_a_step(batch, length, how.heads)
    pairs = length * keys_in_reach(length, how.window)
    block = pl.BlockSpec((rows, length, LANES), lambda b, lanes: (b, 0, lanes))
    by_head = pl.BlockSpec((rows, 1, how.heads, length), lambda b, lanes: (b, lanes, 0, 0))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    cost = pl.CostEstimate(
        flops=2 * products * batch * width * pairs,
        transcendentals=batch * (width // how.head_size) * pairs,
        bytes_accessed=(len(arrays) + results) * arrays[0].size * arrays[0].dtype.itemsize,
    )
    in_specs, inputs, scratch = [block] * len(arrays), list(arrays), []
    if statistics is None:
        out_specs.append(by_head)
        out_shape.append(jax.ShapeDtypeStruct((batch, width // LANES, how.heads, length), jnp.float32))
    else:
        in_specs.append(by_head)
        inputs.append(statistics)
        scratch = [pltpu.VMEM((length, LANES), jnp.float32)] * 2
        out_specs.append(pl.BlockSpec((1, 3, LANES), lambda b, lanes: (b, 0, lanes)))
        out_shape.append(jax.ShapeDtypeStruct((batch // rows, 3, width), jnp.float32))
    # v4's vector memory does not hold those of two of the longest rows.
    buffers = {"pipeline_mode": pl.Buffered(1)} if length > _LARGEST_STEP else {}
    of_row = functools.partial(pl.BlockSpec, index_map=lambda b, lanes: (b, 0, 0), **buffers)
    return pl.pallas_call(
        functools.partial(kernel, how, len(tables)),
        grid=(batch // rows, width // LANES),
        in_specs=[
            pl.BlockSpec((rows, 1, 3), lambda b, lanes: (b, 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((rows, 1, length), lambda b, lanes: (b, 0, 0)),
            of_row((rows, length, 1)),
            pl.BlockSpec((3, LANES), lambda b, lanes: (0, lanes)),
            *[of_row((rows, length, LANES))] * len(tables),
            *in_specs,
        ],
        out_specs=out_specs,
        out_shape=out_shape,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        cost_estimate=cost,
        interpret=how.interpret,
    )(words[:, None], sequence_ids[:, None, :], sequence_ids[:, :, None], biases, *tables, *inputs)


def _keys_together(length: int, heads: int) -> int:
    """Returns the number of keys that blocks of queries may read which are begun together.

    The more, the better the units of the chip are used. v4's vector memory also has to hold the row.

    Args:
        length: the number of tokens of a row.
        heads: the number of heads of a row that a step computes.
    """
    most = 2048 if length <= _LARGEST_STEP else 1024 if length <= 3 * _LARGEST_STEP // 2 else 512
    return 2 * most // max(2, heads)


def _rows_a_step(batch: int, length: int, heads: int) -> int:
    """Returns the number of rows that a step of the grid computes.

    Short rows are grouped, because the overhead of a step would otherwise exceed its work. v4's vector memory
    has room for the logits of two heads of the longest row that is computed whole.

    Args:
        batch: the number of rows, of which the result is a divisor.
        length: the number of tokens of a row.
        heads: the number of heads of a row that a step computes.
    """
    rows = max(1, min(_LARGEST_STEP // length, 2 * LONGEST_WHOLE_ROW**2 // (heads * length**2)))
    while batch % rows:
        rows -= 1
    return rows


def _forward(how, table_count, words, query_ids, key_ids, biases, *arrays):
    tables, (query, key, value, out, statistics) = arrays[:table_count], arrays[table_count:]
    prepared = functools.partial(_prepared, how, biases, tables, (query, key, value))
    of_rows = _words_of(how, words)

    def attend(row, queries, keys):
        q, k, v = prepared(row, queries, keys)
        allowed = _allowed(how, query_ids, key_ids, row, queries, keys)
        logits = [_logits(q, _only(k, lanes), allowed) for lanes in _heads(how)]
        yield
        values, contexts = v.T, []
        for head in range(how.heads):
            largest = jnp.max(logits[head], axis=0, keepdims=True)
            exponentials = jnp.exp2(logits[head] - largest)
            denominators = jnp.sum(exponentials, axis=0, keepdims=True)
            statistics[row, 0, head : head + 1, queries] = largest + jnp.log(denominators) / _LN_2
            exponentials = _drop(how, exponentials, of_rows[row], head, queries, keys, key.shape[1])
            context = _product(values[_features(how, head)], exponentials.astype(v.dtype), (1, 0))
            contexts.append((context / (denominators * (1 - how.rate))).astype(out.dtype))
        out[row, queries] = jnp.concatenate(contexts).T

    _for_each_part(how, query.shape, attend)


def _backward(how, table_count, words, query_ids, key_ids, biases, *arrays):
    tables, (query, key, value, gradient, statistics, *results) = arrays[:table_count], arrays[table_count:]
    *gradients, sums, d_keys, d_values = results
    prepared = functools.partial(_prepared, how, biases, tables, (query, key, value))
    dtype, scale, kept = query.dtype, how.head_size**-0.5, 1 / (1 - how.rate)
    of_rows = _words_of(how, words)
    sums[...] = jnp.zeros(sums.shape, jnp.float32)

    def write(place, row, tokens, total):
        if place < 2:
            total = _turned(how, tables, total, row, tokens, back=True)
        gradients[place][row, tokens] = total.astype(dtype)
        sums[0, place : place + 1] += jnp.sum(total, axis=0, keepdims=True)

    def begin(row):
        d_keys[...] = jnp.zeros(d_keys.shape, jnp.float32)
        d_values[...] = jnp.zeros(d_values.shape, jnp.float32)

    def differentiate(row, queries, keys):
        q, k, v = prepared(row, queries, keys)
        allowed = _allowed(how, query_ids, key_ids, row, queries, keys)
        g = gradient[row, queries]
        logits = [_logits(q, _only(k, lanes), allowed) for lanes in _heads(how)]
        d_weights = [_product(v, _only(g, lanes), (1, 1)) for lanes in _heads(how)]
        yield
        transposed, d_queries = k.T, []
        for head, lanes in enumerate(_heads(how)):
            drop = functools.partial(
                _drop, how, words=of_rows[row], head=head, queries=queries, keys=keys, length=key.shape[1]
            )
            weights = jnp.exp2(logits[head] - statistics[row, 0, head : head + 1, queries])
            d_probabilities = drop(d_weights[head])
            inner = jnp.sum(weights * d_probabilities, axis=0, keepdims=True)
            d_logits = (weights * (d_probabilities - inner)).astype(dtype)
            d_queries.append(_product(transposed[_features(how, head)], d_logits, (1, 0)))
            d_keys[keys] += _product(d_logits, _only(q, lanes), (1, 0))
            d_values[keys] += _product(drop(weights).astype(dtype), _only(g, lanes), (1, 0))
        write(0, row, queries, jnp.concatenate(d_queries).T * (scale * kept))

    def end(row):
        write(1, row, slice(None), d_keys[...] * (_LN_2 * kept))
        write(2, row, slice(None), d_values[...] * kept)

    _for_each_part(how, query.shape, differentiate, begin, end)


def _for_each_part(how, shape, work, begin=lambda row: None, end=lambda row: None):
    """Runs work(row, queries, keys) for parts of rows: for queries, and the keys that they may attend to.

    What it does before its `yield` is done for all rows first, or for some blocks of queries of a row, so
    that the matrix units have work while the vector units compute the softmax.
    """
    rows, length, _ = shape
    if not how.window and length <= LONGEST_WHOLE_ROW:
        whole = pl.ds(0, length)
        parts = [work(row, whole, whole) for row in range(rows)]
        for part in parts:
            next(part)
        for row, part in enumerate(parts):
            begin(row)
            next(part, None)
            end(row)
        return
    span = keys_in_reach(length, how.window)
    reach = (span - LANES) // 2
    blocks = length // LANES
    most = max(1, _keys_together(length, how.heads) // span)
    together = next(count for count in range(most, 0, -1) if not blocks % count)

    def part(row, number):
        first = number * LANES
        keys = jnp.clip(first - reach, 0, length - span)
        queries = pl.ds(pl.multiple_of(first, LANES), LANES)
        return work(row, queries, pl.ds(pl.multiple_of(keys, _ALIGNED), span))

    def parts(row, number, _):
        begun = [part(row, number * together + i) for i in range(together)]
        for each in begun:
            next(each)
        for each in begun:
            next(each, None)

    for row in range(rows):
        begin(row)
        jax.lax.fori_loop(0, blocks // together, functools.partial(parts, row), None)
        end(row)


def _words_of(how, words):
    """Returns what the dropout of each row is hashed from: two words, and the first head of the block."""
    block = pl.program_id(1) * how.heads
    of_rows = ([words[row, 0, i] for i in range(3)] for row in range(words.shape[0]))
    return [(x.astype(jnp.uint32), y.astype(jnp.uint32), head + block) for x, y, head in of_rows]


def _drop(how, x, words, head, queries, keys, length):
    """Applies dropout without its factor to probabilities of a part of a row, or to their gradient.

    The factor, 1 / (1 - rate), is applied to sums over them, of which there are fewer.
    """
    if not how.rate:
        return x
    first, second, first_head = words
    least = threshold(how.rate)
    if how.window:
        query, key = _places(queries, keys)
        line = (((first_head + head) * length + query) * length).astype(jnp.uint32)
        place, shift = pair(key.astype(jnp.uint32))
        kept = keep(line + place, shift, first, second, least)
    else:  # all keys
        query = jax.lax.broadcasted_iota(jnp.int32, (1, queries.size), 1) + queries.start
        line = (((first_head + head) * length + query) * length).astype(jnp.uint32)
        kept = keep_lines(line, length, 0, first, second, least)
    return jnp.where(kept, x, 0.0)


def _places(queries, keys):
    """Returns the positions of queries and of keys in the row, int32 [keys, queries] each."""
    shape = keys.size, queries.size
    return [
        jax.lax.broadcasted_iota(jnp.int32, shape, axis) + tokens.start
        for axis, tokens in ((1, queries), (0, keys))
    ]


def _prepared(how, biases, tables, arrays, row, queries, keys):
    """Returns query, key and value [L, 128] with their biases for the lanes of the block, and turned.

    The query is multiplied by what makes the powers of two of its logits the exponentials of the softmax,
    before it is rounded.
    """
    found = []
    for place, (array, tokens) in enumerate(zip(arrays, (queries, keys, keys), strict=True)):
        x = array[row, tokens].astype(jnp.float32) + biases[place : place + 1]
        if place < 2:
            x = _turned(how, tables, x, row, tokens)
        if place == 0:
            x = x * (how.head_size**-0.5 / _LN_2)
        found.append(x.astype(array.dtype))
    return found


def _turned(how, tables, x, row, tokens, back=False):
    """Returns x [L, 128] turned by rotary positions, or `back`; x without tables."""
    if not tables:
        return x
    cosine, sine = (table[row, tokens] for table in tables)
    half = how.head_size // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    ahead, behind = pltpu.roll(x, LANES - half, 1), pltpu.roll(x, half, 1)
    partner = jnp.where(lane % how.head_size < half, ahead, behind)
    return x * cosine + partner * (-sine if back else sine)


def _features(how, head):
    """Returns the slice of a head in a block of 128 features."""
    return slice(head * how.head_size, (head + 1) * how.head_size)


def _heads(how):
    """Returns bool [1, 128] for each head of a block: which lanes belong to it."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [(lane >= first) & (lane < first + how.head_size) for first in range(0, LANES, how.head_size)]


def _only(x, lanes):
    return jnp.where(lanes, x, jnp.zeros_like(x))


def _product(left, right, contracted):
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _allowed(how, query_ids, key_ids, row, queries, keys):
    """Returns bool [keys, queries], where queries may attend to keys, from ids [B, 1, L] and [B, L, 1]."""
    allowed = query_ids[row, :, queries] == key_ids[row, keys]
    if how.causal or how.window:
        query, key = _places(queries, keys)
        if how.causal:
            allowed &= key <= query
        if how.window:
            allowed &= jnp.abs(key - query) <= how.window
    return allowed


def _logits(query, key, allowed):
    """Returns the binary logarithms of the softmax's exponentials, float32 [keys, queries]."""
    return jnp.where(allowed, _product(key, query, (1, 1)), _MASKED)
