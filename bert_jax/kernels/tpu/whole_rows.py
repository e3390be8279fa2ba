"""The Pallas kernel of attention in whole rows, whose tokens attend to all tokens of their sequence.

A row is one block of queries and keys. A step of the grid computes several short rows.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels.dispatch import LANES
from bert_jax.kernels.tpu import blocks

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu


def forward(options: blocks.AttentionOptions, arrays, biases, by_row) -> tuple[jax.Array, tuple[jax.Array]]:
    """Returns attention, and its statistics for `backward`; see `attention`."""
    out, statistics = _call(options, arrays, biases, by_row)
    return out, (statistics,)


def backward(options: blocks.AttentionOptions, arrays, biases, by_row, statistics) -> tuple[jax.Array, ...]:
    """Returns the gradients of query, key and value, and sums of them; see `attention`."""
    return _call(options, arrays, biases, by_row, statistics)


def _call(options, arrays, biases, by_row, statistics=None):
    """Runs a kernel over a grid of (rows of the batch, blocks of 128 lanes).

    It is the backward kernel if there are statistics, and returns what `blocks.result_shapes` describes.
    """
    seeds, sequence_ids, tables, slopes = by_row
    slopes_specs, slopes = blocks.slopes_inputs(slopes)
    batch, length, width = arrays[0].shape
    is_backward = statistics is not None
    rows = blocks.rows_a_step(batch, length, options.heads)
    block = pl.BlockSpec((rows, length, LANES), lambda b, lanes: (b, 0, lanes))
    by_head = pl.BlockSpec((rows, 1, options.heads, length), lambda b, lanes: (b, lanes, 0, 0))
    of_row = functools.partial(pl.BlockSpec, index_map=lambda b, lanes: (b, 0, 0))
    sums = pl.BlockSpec((1, 3, LANES), lambda b, lanes: (b, 0, lanes))
    return pl.pallas_call(
        functools.partial(_backward if is_backward else _forward, options, len(tables)),
        grid=(batch // rows, width // LANES),
        in_specs=[
            of_row((rows, 1, 5), memory_space=pltpu.SMEM),
            of_row((rows, 1, length)),
            of_row((rows, length, 1)),
            pl.BlockSpec((3, LANES), lambda b, lanes: (0, lanes)),
            *slopes_specs,
            *[of_row((rows, length, LANES))] * len(tables),
            *[block] * len(arrays),
            *[by_head] * is_backward,
        ],
        out_specs=[block, block, block, sums] if is_backward else [block, by_head],
        out_shape=blocks.result_shapes(options, arrays[0], batch // rows if is_backward else None),
        scratch_shapes=[pltpu.VMEM((length, LANES), jnp.float32)] * (2 * is_backward),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel"), vmem_limit_bytes=blocks.memory_limit(20)
        ),
        cost_estimate=blocks.cost(options, arrays, length, is_backward),
        interpret=options.interpret,
    )(
        seeds[:, None],
        sequence_ids[:, None, :],
        sequence_ids[:, :, None],
        biases,
        *slopes,
        *tables,
        *arrays,
        *([statistics] if is_backward else []),
    )


def _forward(options, table_count, seeds, query_ids, key_ids, biases, *arrays):
    slopes, arrays = blocks.slopes_of(options, arrays)
    tables, (*inputs, out, statistics) = arrays[:table_count], arrays[table_count:]
    of_rows = blocks.seeds_of(options, seeds)

    def attend(row):
        q, k, v = _prepared(options, biases, tables, inputs, row)
        limits = _limits(options, slopes, of_rows[row], query_ids, key_ids, row)
        out[row], results = yield from blocks.attend(options, q, k, v, *limits)
        for head, each in enumerate(results):
            statistics[row, 0, head : head + 1] = each

    _for_each_row(out.shape[0], attend)


def _backward(options, table_count, seeds, query_ids, key_ids, biases, *arrays):
    slopes, arrays = blocks.slopes_of(options, arrays)
    tables, (*inputs, gradient, statistics) = arrays[:table_count], arrays[table_count:-6]
    *gradients, sums, d_key, d_value = arrays[-6:]
    of_rows = blocks.seeds_of(options, seeds)
    sums[...] = jnp.zeros(sums.shape, jnp.float32)

    def add(head, place, x):
        total = (d_key, d_value)[place]
        total[...] = total[...] + x if head else x

    def write(row, place, x):
        if place < 2:
            x = blocks.rotated(options, x, [table[row] for table in tables], back=True)
        gradients[place][row] = x.astype(gradient.dtype)
        sums[0, place : place + 1] += jnp.sum(x, axis=0, keepdims=True)

    def differentiate(row):
        q, k, v = _prepared(options, biases, tables, inputs, row)
        limits = _limits(options, slopes, of_rows[row], query_ids, key_ids, row)

        def statistics_of(head):
            return statistics[row, 0, head : head + 1]

        d_query = yield from blocks.differentiate(
            options, q, k, v, gradient[row], statistics_of, *limits, add
        )
        write(row, 0, d_query)
        write(row, 1, d_key[...] * options.key_scale)
        write(row, 2, d_value[...] * options.value_scale)

    _for_each_row(gradient.shape[0], differentiate)


def _limits(options, slopes, of_row, query_ids, key_ids, row):
    """Returns the mask of the logits of a row, and its dropout."""
    whole = pl.ds(0, query_ids.shape[2])
    mask = blocks.masker(options, slopes, query_ids[row], key_ids[row], whole, whole)
    return mask, blocks.dropper(options, of_row, whole.size, whole, whole)


def _prepared(options, biases, tables, inputs, row):
    """Returns query, key and value [L, 128] with their biases, and rotated."""
    results = []
    for place, array in enumerate(inputs):
        x = blocks.biased(array[row], biases[place : place + 1])
        if place < 2:
            x = blocks.rotated(options, x, [table[row] for table in tables])
        if place == 0:
            x = blocks.scaled(options, x)
        results.append(x.astype(array.dtype))
    return results


def _for_each_row(rows, work):
    """Runs work(row), whose first part is done for all rows before the rest of the first one."""
    parts = [work(row) for row in range(rows)]
    for part in parts:
        next(part)
    for part in parts:
        next(part, None)
