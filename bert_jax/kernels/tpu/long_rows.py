"""The Pallas kernel of attention in long rows, whose tokens attend to all tokens of their sequence.

It is a flash kernel (Dao et al. 2022): a step of the grid computes a block of queries and a block of keys,
with running maxima and sums in the forward pass. Pairs of blocks without a common sequence, which are
frequent in a packed row, are skipped at run time.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels.dispatch import LANES
from bert_jax.kernels.tpu import blocks
from bert_jax.kernels.tpu.blocks import in_rows, widened

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

# Sizes of a block. TPU v4 has fewer keys, because its vector memory is smaller.
_MOST_QUERIES, _MOST_KEYS, _FEWER_KEYS = 512, 1024, 512


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Blocks of a row, in a grid of (rows, blocks of 128 lanes, queries, keys), or with the last two swapped.

    A block has `queries` queries or `keys` keys of a row of `length` tokens. If `keys_last`, the blocks of
    keys are the innermost loop, for each block of queries.
    """

    length: int
    queries: int
    keys: int
    keys_last: bool

    @classmethod
    def of(cls, options: blocks.AttentionOptions, array: jax.Array, keys_last: bool) -> _Grid:
        """Returns the grid for [B, L, N D], with L a multiple of 128."""
        length = array.shape[1]

        def block(most):
            return next(size for size in range(most, 0, -LANES) if not length % size)

        # Blocks of float32 take twice the memory.
        keys = _MOST_KEYS if blocks.has_room() else _FEWER_KEYS * 2 // array.dtype.itemsize
        return cls(length, block(2 * _MOST_QUERIES // max(2, options.heads)), block(keys), keys_last)

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the numbers of blocks, in the order of the grid."""
        counts = self.length // self.queries, self.length // self.keys
        return counts if self.keys_last else counts[::-1]

    def spec(self, shape, place, **options) -> pl.BlockSpec:
        """Returns the blocks of an array; `place` gives their indices for (row, lanes, queries, keys)."""

        def index(row, lanes, first, second):
            return place(row, lanes, *((first, second) if self.keys_last else (second, first)))

        return pl.BlockSpec(shape, index, **options)

    def of_queries(self) -> pl.BlockSpec:
        """Returns the blocks of queries of [B, L, N D]."""
        return self.spec((1, self.queries, LANES), lambda b, lanes, q, k: (b, q, lanes))

    def of_keys(self) -> pl.BlockSpec:
        """Returns the blocks of keys of [B, L, N D]."""
        return self.spec((1, self.keys, LANES), lambda b, lanes, q, k: (b, k, lanes))

    def by_head(self, heads: int) -> pl.BlockSpec:
        """Returns the blocks of queries of [B, N D / 128, heads, L]."""
        return self.spec((1, 1, heads, self.queries), lambda b, lanes, q, k: (b, lanes, 0, q))

    def steps(self) -> tuple[jax.Array, jax.Array]:
        """Returns the numbers of the blocks of queries and of keys that a step computes."""
        ids = pl.program_id(2), pl.program_id(3)
        return ids if self.keys_last else ids[::-1]


def forward(options: blocks.AttentionOptions, arrays, biases, by_row):
    """Returns attention, and its statistics and itself for `backward`; see `attention`."""
    query = arrays[0]
    grid = _Grid.of(options, query, keys_last=True)
    out, statistics = _call(
        options,
        grid,
        _forward,
        arrays,
        [grid.of_queries(), grid.of_keys(), grid.of_keys()],
        biases,
        by_row,
        out_shape=blocks.result_shapes(options, query),
        out_specs=[grid.of_queries(), grid.by_head(options.heads)],
        scratch_shapes=[
            pltpu.VMEM((grid.queries, LANES), query.dtype),
            pltpu.VMEM((LANES, grid.queries), jnp.float32),
            *[pltpu.VMEM((options.heads, grid.queries), jnp.float32)] * 2,
        ],
        cost_estimate=blocks.cost(options, arrays, grid.length),
    )
    return out, (statistics, out)


def backward(options: blocks.AttentionOptions, arrays, biases, by_row, statistics, out):
    """Returns the gradients of query, key and value, and sums of them; see `attention`."""
    query, *_, gradient = arrays
    batch, length, _ = query.shape
    grid = _Grid.of(options, query, keys_last=False)
    # The sum over keys of probabilities times their gradients.
    products = out.astype(jnp.float32) * gradient.astype(jnp.float32) * (1 - options.rate)
    inner = jnp.sum(products.reshape(batch, length, -1, options.heads, options.head_size), axis=-1)
    last = grid.shape[0] - 1
    return _call(
        options,
        grid,
        _backward,
        [*arrays, statistics, inner.transpose(0, 2, 3, 1)],
        [grid.of_queries(), *[grid.of_keys()] * 2, grid.of_queries(), *[grid.by_head(options.heads)] * 2],
        biases,
        by_row,
        out_shape=blocks.result_shapes(options, query, batch),
        out_specs=[
            # The gradients of queries are complete after the last keys.
            grid.spec(
                (1, grid.queries, LANES), lambda b, lanes, q, k: (b, jnp.where(k == last, q, 0), lanes)
            ),
            *[grid.of_keys()] * 2,
            grid.spec((1, 3, LANES), lambda b, lanes, q, k: (b, 0, lanes)),
        ],
        scratch_shapes=[
            *[pltpu.VMEM((grid.keys, LANES), query.dtype)] * 2,
            pltpu.VMEM((length, LANES), jnp.float32),
            *[pltpu.VMEM((grid.keys, LANES), jnp.float32)] * 2,
        ],
        cost_estimate=blocks.cost(options, arrays, length, is_backward=True),
    )


def _call(options, grid, kernel, arrays, specs, biases, by_row, **call_options):
    seeds, sequence_ids, tables, slopes = by_row
    slopes_specs, slopes = blocks.slopes_inputs(slopes)
    batch, length, width = arrays[0].shape
    ids = sequence_ids[:, None]
    in_specs = [
        grid.spec((1, 1, 5), lambda b, lanes, q, k: (b, 0, 0), memory_space=pltpu.SMEM),
        *[
            grid.spec((1, 2, length // size), lambda b, lanes, q, k: (b, 0, 0), memory_space=pltpu.SMEM)
            for size in (grid.queries, grid.keys)
        ],
        grid.spec((1, 1, grid.queries), lambda b, lanes, q, k: (b, 0, q)),
        grid.spec((1, 1, grid.keys), lambda b, lanes, q, k: (b, 0, k)),
        grid.spec((3, LANES), lambda b, lanes, q, k: (0, lanes)),
        *slopes_specs,
        *[grid.spec((1, grid.queries, LANES), lambda b, lanes, q, k: (b, q, 0))] * len(tables),
        *[grid.spec((1, grid.keys, LANES), lambda b, lanes, q, k: (b, k, 0))] * len(tables),
        *specs,
    ]
    ranges = [_ranges(sequence_ids, size) for size in (grid.queries, grid.keys)]
    semantics = ("parallel", "parallel", "parallel" if grid.keys_last else "arbitrary", "arbitrary")
    return pl.pallas_call(
        functools.partial(kernel, options, grid, len(tables)),
        grid=(batch, width // LANES, *grid.shape),
        in_specs=in_specs,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=semantics, vmem_limit_bytes=blocks.memory_limit(32)
        ),
        interpret=options.interpret,
        **call_options,
    )(seeds[:, None], *ranges, ids, ids, biases, *slopes, *tables, *tables, *arrays)


def _ranges(sequence_ids, size):
    """Returns the lowest and the highest id of each block of a row, int32 [B, 2, blocks]."""
    # Padding comes last in a row and has id 0.
    ids = jnp.where(sequence_ids == 0, jnp.iinfo(jnp.int32).max, sequence_ids)
    ids = ids.reshape(ids.shape[0], -1, size)
    return jnp.stack([jnp.min(ids, axis=2), jnp.max(ids, axis=2)], axis=1)


def _meet(options, grid, steps, query_ranges, key_ranges):
    """Returns whether any query of a step may attend to any of its keys."""
    q, k = steps
    meet = query_ranges[0, 0, q] <= key_ranges[0, 1, k]
    meet &= key_ranges[0, 0, k] <= query_ranges[0, 1, q]
    if options.causal:
        meet &= k * grid.keys < (q + 1) * grid.queries
    return meet


def _limits(options, grid, steps, slopes, of_row, query_ids, key_ids):
    """Returns the functions that apply the mask and dropout in a step."""
    q, k = steps
    queries, keys = pl.ds(q * grid.queries, grid.queries), pl.ds(k * grid.keys, grid.keys)
    key_ids = widened(in_rows(key_ids[0]), grid.queries)
    mask = blocks.masker(options, slopes, query_ids[0], key_ids, queries, keys)
    return mask, blocks.dropper(options, of_row, grid.length, queries, keys)


def _prepared(options, biases, tables, arrays):
    """Returns the query, or key and value, of a step with their biases, and rotated."""
    first, *rest = arrays
    place = 1 if rest else 0
    x = blocks.biased(first[0], biases[place : place + 1])
    x = blocks.rotated(options, x, [table[0] for table in tables])
    if not rest:
        return blocks.scaled(options, x).astype(first.dtype)
    (value,) = rest
    return x.astype(first.dtype), blocks.biased(value[0], biases[2:3]).astype(value.dtype)


def _forward(
    options, grid, table_count, seeds, query_ranges, key_ranges, query_ids, key_ids, biases, *arrays
):
    slopes, arrays = blocks.slopes_of(options, arrays)
    tables, arrays = arrays[: 2 * table_count], arrays[2 * table_count :]
    query, key, value, out, statistics, prepared, contexts, largest, denominators = arrays
    (of_row,) = blocks.seeds_of(options, seeds)
    steps, last = grid.steps(), grid.shape[1] - 1

    @pl.when(steps[1] == 0)
    def _():
        prepared[...] = _prepared(options, biases, tables[:table_count], [query])
        contexts[...] = jnp.zeros(contexts.shape, jnp.float32)
        largest[...] = jnp.full(largest.shape, -jnp.inf, jnp.float32)
        denominators[...] = jnp.zeros(denominators.shape, jnp.float32)

    @pl.when(_meet(options, grid, steps, query_ranges, key_ranges))
    def _():
        k, v = _prepared(options, biases, tables[table_count:], [key, value])
        limits = _limits(options, grid, steps, slopes, of_row, query_ids, key_ids)
        blocks.attend_running(options, prepared[...], k, v, *limits, contexts, largest, denominators)

    @pl.when(steps[1] == last)
    def _():
        results = []
        for head in range(options.heads):
            each = slice(head, head + 1)
            statistics[0, 0, each] = largest[each] + blocks.log2(denominators[each])
            context = contexts[blocks.features(options, head)]
            results.append(context / (denominators[each] * (1 - options.rate)))
        out[0] = jnp.concatenate(results).T.astype(out.dtype)


def _backward(
    options, grid, table_count, seeds, query_ranges, key_ranges, query_ids, key_ids, biases, *arrays
):
    slopes, arrays = blocks.slopes_of(options, arrays)
    tables, arrays = arrays[: 2 * table_count], arrays[2 * table_count :]
    query, key, value, gradient, statistics, inner, *results = arrays
    *gradients, sums, k, v, d_query, d_key, d_value = results
    (of_row,) = blocks.seeds_of(options, seeds)
    of_queries, of_keys = tables[:table_count], tables[table_count:]
    q_step, k_step = steps = grid.steps()
    last_keys, last_queries = (count - 1 for count in grid.shape)
    queries = pl.ds(pl.multiple_of(q_step * grid.queries, LANES), grid.queries)

    @pl.when((q_step == 0) & (k_step == 0))
    def _():
        sums[...] = jnp.zeros(sums.shape, jnp.float32)
        d_query[...] = jnp.zeros(d_query.shape, jnp.float32)

    @pl.when(q_step == 0)
    def _():
        k[...], v[...] = _prepared(options, biases, of_keys, [key, value])
        d_key[...] = jnp.zeros(d_key.shape, jnp.float32)
        d_value[...] = jnp.zeros(d_value.shape, jnp.float32)

    @pl.when(_meet(options, grid, steps, query_ranges, key_ranges))
    def _():
        q = _prepared(options, biases, of_queries, [query])
        limits = _limits(options, grid, steps, slopes, of_row, query_ids, key_ids)
        statistics_of, inner_of = (lambda head, x=x: x[0, 0, head : head + 1] for x in (statistics, inner))

        def add(head, place, x):
            (d_key, d_value)[place][...] += x

        d_query[queries] += blocks.run(
            blocks.differentiate(
                options, q, k[...], v[...], gradient[0], statistics_of, *limits, add, inner_of
            )
        )

    def write(place, x, turning):
        if place < 2:
            x = blocks.rotated(options, x, [table[0] for table in turning], back=True)
        gradients[place][0] = x.astype(query.dtype)
        sums[0, place : place + 1] += jnp.sum(x, axis=0, keepdims=True)

    @pl.when(q_step == last_queries)
    def _():
        write(1, d_key[...] * options.key_scale, of_keys)
        write(2, d_value[...] * options.value_scale, of_keys)

    @pl.when(k_step == last_keys)
    def _():
        write(0, d_query[queries], of_queries)
