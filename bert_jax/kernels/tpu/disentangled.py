"""Disentangled attention (He et al. 2021) as Pallas kernels for TPU, for rows that fit into vector memory.

A step of the grid computes 128 lanes, one or more heads, of some rows. The products of a block of queries
with the table of distances are aligned by a rotation whose shift grows by one from row to row. TPUs newer
than v4 need a few operations per register for it. As an XLA program, the copies of the relative shift take
four times as long as the rest of a train step. The backward pass needs a rotation whose shift decreases. It
rotates reversed rows, and reverses rows by matmuls with a permutation. Logits have the queries along
sublanes. The terms of keys and distances are computed with the keys along sublanes, and then transposed.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import LANES
from bert_jax.kernels.dropout import column_hash, keep, kernel_seeds, row_hash
from bert_jax.kernels.matmul import dot
from bert_jax.kernels.tpu.blocks import has_room, in_rows, memory_limit, only, widened
from bert_jax.kernels.xla_attention import MASKED

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_LN_2 = math.log(2)
_BLOCK = 128  # queries, or keys, that are multiplied with the table together
_LARGEST_STEP = 512  # tokens of the rows of a step
_END = object()


@dataclasses.dataclass(frozen=True)
class _Options:
    head_size: int
    rate: float
    interpret: bool


def attend(query, key, value, relative_keys, relative_queries, sequence_ids, rate, dropout_key):
    """Computes `disentangled.attend` for scaled queries and relative queries that `dispatch` allows.

    Both tables are [2 L - 1, N, D].
    """
    options = _Options(
        query.shape[-1], rate if dropout_key is not None else 0.0, platform.interprets_kernels()
    )

    def kernel(query, key, value, keys_table, queries_table, sequence_ids, seeds, heads):
        # A device with some of the heads hashes their masks from the head indices in the whole row.
        first_head = jnp.broadcast_to(heads[:1], (seeds.shape[0], 1))
        seeds = jnp.concatenate([seeds, first_head], axis=1)
        return _attend(options, query, key, value, keys_table, queries_table, (seeds, sequence_ids))

    by_head, by_row = ("batch", None, "heads"), ("batch", None)
    axes = (by_head, by_head, by_head, (None, "heads"), (None, "heads"), by_row, by_row, ("heads",))
    kernel = platform.on_each_device(kernel, axes, by_head)
    # The kernel computes exponentials as powers of two.
    flat = [x.reshape(*x.shape[:2], -1) for x in (query / _LN_2, key, value)]
    tables = [
        jnp.pad(x, [(0, 1), (0, 0), (0, 0)]).reshape(2 * query.shape[1], -1)
        for x in (relative_keys, relative_queries / _LN_2)
    ]
    seeds = kernel_seeds(dropout_key if options.rate else None, len(query))
    out = kernel(
        *(x.astype(query.dtype) for x in (*flat, *tables)), sequence_ids, seeds, jnp.arange(query.shape[2])
    )
    return out.reshape(query.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options, query, key, value, keys_table, queries_table, by_row):
    return _call(options, (query, key, value), (keys_table, queries_table), by_row)[0]


def _attend_fwd(options, *arguments):
    return _attend(options, *arguments), arguments


def _attend_bwd(options, arguments, gradient):
    *arrays, keys_table, queries_table, by_row = arguments
    *gradients, d_keys, d_queries = _call(options, (*arrays, gradient), (keys_table, queries_table), by_row)
    return *gradients, d_keys.T.astype(gradient.dtype), d_queries.T.astype(gradient.dtype), (None, None)


_attend.defvjp(_attend_fwd, _attend_bwd)


def _call(options, arrays, tables, by_row):
    """Runs the backward kernel if there are four arrays, else the forward kernel, over (lanes, rows)."""
    seeds, sequence_ids = by_row
    batch, length, width = arrays[0].shape
    rows = next(rows for rows in range(max(1, _LARGEST_STEP // length), 0, -1) if not batch % rows)
    is_backward = len(arrays) == 4
    tokens = pl.BlockSpec((rows, length, LANES), lambda lanes, b: (b, 0, lanes))
    table = pl.BlockSpec((2 * length, LANES), lambda lanes, b: (0, lanes))
    d_table = pl.BlockSpec((LANES, 2 * length), lambda lanes, b: (lanes, 0))
    ids = pl.BlockSpec((rows, 1, length), lambda lanes, b: (b, 0, 0))
    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    sums = jax.ShapeDtypeStruct((width, 2 * length), jnp.float32)
    pairs = batch * length**2 * width
    products = 15 if is_backward else 5
    moved = (len(arrays) + (3 if is_backward else 1)) * arrays[0].size
    return pl.pallas_call(
        functools.partial(_backward if is_backward else _forward, options),
        grid=(width // LANES, batch // rows),
        in_specs=[
            pl.BlockSpec((rows, 1, 5), lambda lanes, b: (b, 0, 0), memory_space=pltpu.SMEM),
            ids,
            *[table] * 2,
            *[tokens] * len(arrays),
        ],
        out_specs=[*[tokens] * 3, *[d_table] * 2] if is_backward else [tokens],
        out_shape=[like, like, like, sums, sums] if is_backward else [like],
        scratch_shapes=[
            *[pltpu.VMEM((rows * (LANES // options.head_size), length, length), like.dtype)]
            * (1 + is_backward),
            *[pltpu.VMEM((rows, LANES, length), jnp.float32)] * (2 * is_backward),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary"), vmem_limit_bytes=memory_limit(32)
        ),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * pairs,
            transcendentals=pairs // options.head_size,
            bytes_accessed=moved * arrays[0].dtype.itemsize,
        ),
        interpret=options.interpret,
    )(seeds[:, None], sequence_ids[:, None], *tables, *arrays)


def _rotated(x, shift):
    """Returns x with row a rotated to the right by `shift` + a."""
    if has_room():
        return pltpu.roll(x, shift, 1, stride=1, stride_axis=0)
    # TPU v4 can only rotate all rows by the same shift, and only 32-bit elements.
    row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    y = pltpu.roll(x.astype(jnp.float32), shift, 1)
    for bit in range(_BLOCK.bit_length() - 1):
        y = jnp.where(row & (1 << bit) > 0, pltpu.roll(y, 1 << bit, 1), y)
    return y.astype(x.dtype)


def _aligned(x, length):
    """Returns [128, L]: row a is row a of x [128, L + 128] from column 127 - a on."""
    return _rotated(x, length + 1)[:, :length]


def _aligned_back(x, reverse):
    """Transposes `_aligned`: returns [128, L + 128], with the rows reversed, for a gradient x [128, L]."""
    y = jnp.concatenate([dot(reverse, x, (1, 0)), jnp.zeros((_BLOCK, _BLOCK), jnp.float32)], axis=1)
    return _rotated(y, 0).astype(x.dtype)


def _for_each_block(heads, *works):
    """Runs the generators work(head, tokens, distances) for all blocks of heads, alternating at each `yield`.

    Heads start one after another, so that the matrix units have work while the vector units compute the
    softmax of another head. `distances` are a table's rows for the distances from a block to all tokens.
    """
    length = heads[0].length
    blocks = [
        (slice(start, start + _BLOCK), slice(length - _BLOCK - start, 2 * length - start))
        for start in range(0, length, _BLOCK)
    ]
    begun, waiting = [], list(heads)
    while begun or waiting:
        begun += [work(head, *block) for head in waiting[:1] for work in works for block in blocks]
        del waiting[:1]
        begun = [one for one in begun if next(one, _END) is not _END]


@dataclasses.dataclass(frozen=True)
class _Head:
    """A head of a row and its inputs."""

    options: _Options
    place: int  # index of the head in the step
    row: int  # index of its row in the step
    number: int  # index of the head in the block of lanes
    lanes: jax.Array  # bool [1, 128], the lanes that belong to it
    seeds: tuple[jax.Array, ...]  # as from `blocks.seeds_of`
    ids: jax.Array  # int32 [1, L]
    tables: Sequence[Any]  # both tables of the block
    terms: Any  # [L, L], the logits of keys and distances, which `write_terms` computes
    query: jax.Array  # [L, 128]
    key: jax.Array
    value: jax.Array

    @property
    def length(self) -> int:
        return self.query.shape[0]

    @property
    def features(self) -> slice:
        size = self.options.head_size
        return slice(self.number * size, (self.number + 1) * size)

    def write_terms(self, tokens, distances):
        """Computes the logits of a block of keys with the distances to all queries."""
        terms = dot(only(self.key[tokens], self.lanes), self.tables[1][distances], (1, 1))
        yield
        self.terms[:, tokens] = _aligned(terms.astype(self.terms.dtype), self.length).T

    def products(self, tokens, distances):
        """Returns the products of a block of queries with keys, and with the table."""
        query = only(self.query[tokens], self.lanes)
        return dot(query, self.key, (1, 1)), dot(query, self.tables[0][distances], (1, 1))

    def softmax(self, tokens, with_keys, with_table):
        """Returns exponentials, float32 [128, L], and the reciprocals of their sums [128, 1]."""
        x = with_keys + self.terms[tokens].astype(jnp.float32) + _aligned(with_table, self.length)
        query_ids = widened(in_rows(self.ids[:, tokens]), self.length)
        x = jnp.where(query_ids == self.ids, x, MASKED)
        x = jnp.exp2(x - jnp.max(x, axis=1, keepdims=True))
        return x, 1 / jnp.sum(x, axis=1, keepdims=True)

    def drop(self, tokens, x):
        """Applies dropout to probabilities or their gradient, without the factor 1 / (1 - rate)."""
        if not self.options.rate:
            return x
        *of_rows, first_of_columns, second_of_columns, first_head = self.seeds
        query = jax.lax.broadcasted_iota(jnp.int32, (1, _BLOCK), 1) + tokens.start
        key = jax.lax.broadcasted_iota(jnp.int32, (1, self.length), 1)
        rows = (first_head + self.number) * self.length + query
        rows = widened(in_rows(row_hash(rows.astype(jnp.uint32), *of_rows)), self.length)
        columns = column_hash(key.astype(jnp.uint32), first_of_columns, second_of_columns)
        return jnp.where(keep(rows, columns, self.options.rate), x, 0.0)

    def write(self, array, tokens, x):
        """Writes the lanes of this head of x [128, 128]."""
        x = x.astype(array.dtype)
        array[self.row, tokens] = jnp.where(self.lanes, x, array[self.row, tokens]) if self.number else x


def _heads(options, seeds, ids, tables, terms, arrays):
    """Returns the heads of all rows of a step."""
    lane, size = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1), options.head_size
    first, heads = pl.program_id(0) * (LANES // size), []
    for row in range(seeds.shape[0]):
        *of_row, first_head = (seeds[row, 0, i] for i in range(5))
        words = (*(word.astype(jnp.uint32) for word in of_row), first_head + first)
        inputs = [x[row] for x in arrays]
        for number in range(LANES // size):
            lanes = (lane >= number * size) & (lane < (number + 1) * size)
            of_head = terms.at[len(heads)]
            heads.append(
                _Head(options, len(heads), row, number, lanes, words, ids[row], tables, of_head, *inputs)
            )
    return heads


def _forward(options, seeds, ids, keys_table, queries_table, query, key, value, out, terms):
    def attend(head, tokens, distances):
        products = head.products(tokens, distances)
        yield
        x, factor = head.softmax(tokens, *products)
        x = head.drop(tokens, x).astype(value.dtype)
        yield
        context = dot(x, head.value, (1, 0)) * (factor / (1 - options.rate))
        head.write(out, tokens, context)

    heads = _heads(options, seeds, ids, (keys_table, queries_table), terms, (query, key, value))
    _for_each_block(heads, _Head.write_terms, attend)


def _backward(
    options, seeds, ids, keys_table, queries_table, query, key, value, gradient,
    d_query, d_key, d_value, d_keys_table, d_queries_table, terms, d_logits, of_keys, of_values,
):  # fmt: skip
    dtype = query.dtype
    i, j = (jax.lax.broadcasted_iota(jnp.int32, (_BLOCK, _BLOCK), axis) for axis in range(2))
    reverse = (i + j == _BLOCK - 1).astype(dtype)

    @pl.when(pl.program_id(1) == 0)
    def _():
        for table in (d_keys_table, d_queries_table):
            table[...] = jnp.zeros(table.shape, jnp.float32)

    def through_table(x, features, distances, gradient, table, d_table):
        """Adds to the gradient of a table, and returns the gradient of x through the table, [128, 128].

        `x` [D, 128] are the features of a block of tokens, and `gradient` is a result of `_aligned_back`.
        """
        backwards = dot(x, reverse, (1, 0)).astype(dtype)
        d_table[features, distances] += dot(backwards, gradient, (1, 0))
        return dot(reverse, dot(gradient, table[distances], (1, 0)).astype(dtype), (1, 0))

    def of_query(head, tokens, distances):
        products = head.products(tokens, distances)
        of_result = gradient[head.row, tokens]
        scaled = (of_result.astype(jnp.float32) * (_LN_2 / (1 - options.rate))).astype(dtype)
        d_x = dot(only(scaled, head.lanes), head.value, (1, 1))
        yield
        x, factor = head.softmax(tokens, *products)
        x *= factor
        d_x = head.drop(tokens, d_x)
        d_x = (x * (d_x - jnp.sum(x * d_x, axis=1, keepdims=True))).astype(dtype)
        d_logits[head.place, tokens] = d_x
        x = head.drop(tokens, x).astype(dtype)
        yield
        back = _aligned_back(d_x, reverse)
        d_q = dot(d_x, head.key, (1, 0))
        queries, results = head.query[tokens].T[head.features], of_result.T[head.features]
        for sums, left, right in ((of_values, results, x), (of_keys, queries, d_x)):
            product = dot(left, right, (1, 0))
            place = head.row, head.features
            sums[place] = product + (sums[place] if tokens.start else 0)
        yield
        d_q += through_table(queries, head.features, distances, back, keys_table, d_keys_table)
        head.write(d_query, tokens, d_q)

    def of_key(head, tokens, distances):
        back = _aligned_back(d_logits[head.place, :, tokens].T, reverse)
        yield
        x = head.key[tokens].T[head.features]
        d_k = through_table(x, head.features, distances, back, queries_table, d_queries_table)
        head.write(d_key, tokens, d_k + of_keys[head.row, :, tokens].T)
        head.write(d_value, tokens, of_values[head.row, :, tokens].T / (1 - options.rate))

    heads = _heads(options, seeds, ids, (keys_table, queries_table), terms, (query, key, value))
    _for_each_block(heads, _Head.write_terms, of_query)
    _for_each_block(heads, of_key)
