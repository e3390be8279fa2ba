"""The Pallas kernel of attention in short rows, and of local attention.

In local attention a token attends to the tokens at most a window away. A row that does not fit into vector
memory is computed in segments. The tokens at the ends of a segment also attend to tokens of the neighboring
segments, its halos, which are read a second time. A step of the grid computes a segment, or some short rows,
in blocks of queries, each with the keys that its queries may attend to. It first prepares the keys and values
of the segment and its halos in vector memory. In the backward pass, the segments of a row are computed in
order, and a step writes the gradients of keys and values of the previous segment, which are then complete.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels.dispatch import LANES, LONGEST_SEGMENT, LONGEST_WHOLE_ROW
from bert_jax.kernels.tpu import blocks
from bert_jax.kernels.tpu.blocks import in_rows, widened

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

# Number of keys of the query blocks that are started together: for two heads, and for more heads on TPU v4,
# whose vector memory is smaller.
_KEYS_TOGETHER, _FEWER_TOGETHER = 2048, 1024
# Queries of a block; queries of a block in rows without a window; alignment of a block's first key in tokens.
_BLOCK, _LARGE_BLOCK, _ALIGNED = 128, 256, 64
# Tokens of the longest segment if a row has several: halos, float32 arrays and the gradients of the previous
# segment need a part of TPU v4's vector memory.
_LONGEST_OF_SEVERAL = 512
_LARGEST_STEP = 1024  # tokens of the rows of a step
# Id of the positions before and after a row.
_NOWHERE = -1


@dataclasses.dataclass(frozen=True)
class Segments:
    """Segments of equal size.

    The tokens of a segment may attend to `halo` tokens before it and after it, rounded up to a divisor of
    `size`, and a block of queries to `reach` tokens, rounded up to a multiple of 64.
    """

    size: int  # tokens of a segment, a multiple of 128
    count: int  # segments of a row
    halo: int  # 0 if the row has one segment
    reach: int
    block: int  # queries of a block

    @property
    def extended(self) -> int:
        """Returns the number of tokens of a segment with its halos."""
        return self.size + 2 * self.halo

    @property
    def span(self) -> int:
        """Returns the number of keys that a block of queries is multiplied by."""
        return min(self.extended, self.block + 2 * self.reach)


def divide(length: int, window: int) -> Segments:
    """Returns the segments of a row of `length` tokens, a multiple of 128.

    A token attends to the tokens at most `window` away, as `dispatch` allows it. For global attention it is
    the length of the row.
    """
    reach = -(-window // _ALIGNED) * _ALIGNED
    longest = LONGEST_SEGMENT if length <= LONGEST_SEGMENT else _LONGEST_OF_SEVERAL
    size = next(size for size in range(longest, 0, -_BLOCK) if not length % size)
    if size == length:
        is_large = window == length and not length % _LARGE_BLOCK
        return Segments(size, 1, 0, reach, _LARGE_BLOCK if is_large else _BLOCK)
    halo = next(halo for halo in range(reach, size + 1, _ALIGNED) if not size % halo)
    return Segments(size, length // size, halo, reach, _BLOCK)


def forward(options: blocks.AttentionOptions, arrays, biases, by_row) -> tuple[jax.Array, tuple[jax.Array]]:
    """Returns attention, and its statistics for `backward`; see `attention`."""
    out, statistics = _call(options, arrays, biases, by_row)
    return out, (statistics,)


def backward(options: blocks.AttentionOptions, arrays, biases, by_row, statistics) -> tuple[jax.Array, ...]:
    """Returns the gradients of query, key and value, and sums of them; see `attention`."""
    return _call(options, arrays, biases, by_row, statistics)


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Blocks of arrays for a grid of (rows of the batch, blocks of 128 lanes, segments).

    A step has `rows` rows, and `parts` are the segments of a row.
    """

    rows: int
    parts: Segments

    def spec(self, shape, place, behind=0) -> pl.BlockSpec:
        """Returns the block of an array; `place` gives its indices for (row, lanes, segment).

        The segment is the step's segment, or `behind` segments before it.
        """
        last = self.parts.count - 1
        return pl.BlockSpec(shape, lambda b, lanes, s: place(b, lanes, jnp.clip(s - behind, 0, last)))

    def tokens(self, behind=0) -> pl.BlockSpec:
        """Returns the segments of [B, L, N D]."""
        return self.spec((self.rows, self.parts.size, LANES), lambda b, lanes, s: (b, s, lanes), behind)

    def extended(self) -> list[pl.BlockSpec]:
        """Returns the segments of [B, L, N D] and, if there are several, the halos before and after each."""
        size, halo = self.parts.size, self.parts.halo
        if not halo:
            return [self.tokens()]
        halos = size // halo
        last = self.parts.count * halos - 1

        def at(place):
            return self.spec(
                (self.rows, halo, LANES), lambda b, lanes, s: (b, jnp.clip(place(s), 0, last), lanes)
            )

        return [self.tokens(), at(lambda s: s * halos - 1), at(lambda s: (s + 1) * halos)]


def _call(options, arrays, biases, by_row, statistics=None):
    """Runs a kernel over a grid of (rows of the batch, blocks of 128 lanes, segments).

    It is the backward kernel if there are statistics. `blocks.result_shapes` describes the results.
    """
    seeds, sequence_ids, tables, slopes = by_row
    slopes_specs, slopes = blocks.slopes_inputs(slopes)
    batch, length, width = arrays[0].shape
    parts = divide(length, options.window or length)
    # Short rows are grouped, because the overhead of a step would otherwise exceed its work. v4's vector
    # memory has room for the logits of two heads of the longest row that is not split.
    logits = (4 if blocks.has_room() else 2) * LONGEST_WHOLE_ROW**2
    most = max(1, min(_LARGEST_STEP // length, logits // (options.heads * length**2)))
    rows = next(rows for rows in range(most, 0, -1) if not batch % rows)
    grid = _Grid(rows, parts)
    is_backward = statistics is not None
    lag = int(is_backward and parts.count > 1)
    extended = grid.extended()
    query, key, value, *gradient = arrays
    tables = [_with_halos(table, parts, 0) for table in tables]
    by_head = grid.spec((rows, 1, options.heads, parts.size), lambda b, lanes, s: (b, lanes, 0, s))
    sums = grid.spec((1, 3, LANES), lambda b, lanes, s: (b, 0, lanes))
    ids = sequence_ids.reshape(batch, parts.count, 1, parts.size)
    key_ids = _with_halos(sequence_ids, parts, _NOWHERE)[:, :, None]
    return pl.pallas_call(
        functools.partial(_backward if is_backward else _forward, options, parts, len(tables)),
        grid=(batch // rows, width // LANES, parts.count + lag),
        in_specs=[
            pl.BlockSpec((rows, 1, 5), lambda b, lanes, s: (b, 0, 0), memory_space=pltpu.SMEM),
            grid.spec((rows, 1, 1, parts.size), lambda b, lanes, s: (b, s, 0, 0)),
            grid.spec((rows, 1, 1, parts.extended), lambda b, lanes, s: (b, s, 0, 0)),
            pl.BlockSpec((3, LANES), lambda b, lanes, s: (0, lanes)),
            *slopes_specs,
            *[grid.spec((rows, 1, parts.extended, LANES), lambda b, lanes, s: (b, s, 0, 0))] * len(tables),
            grid.tokens(),
            *extended,
            *extended,
            *[grid.tokens()] * len(gradient),
            *[by_head] * is_backward,
        ],
        out_specs=(
            [grid.tokens(), *[grid.tokens(lag)] * 2, sums] if is_backward else [grid.tokens(), by_head]
        ),
        out_shape=blocks.result_shapes(options, query, batch // rows if is_backward else None),
        scratch_shapes=[
            *[pltpu.VMEM((rows, parts.extended, LANES), query.dtype)] * 2,
            pltpu.VMEM((rows, parts.extended, parts.block), jnp.int32),
            *[pltpu.VMEM((rows, parts.extended, LANES), jnp.float32)] * (2 * is_backward),
            *[pltpu.VMEM((parts.size + parts.halo, LANES), jnp.float32)] * (2 * lag),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary"),
            vmem_limit_bytes=blocks.memory_limit(24),
        ),
        cost_estimate=blocks.cost(options, arrays, parts.span, is_backward),
        interpret=options.interpret,
    )(
        seeds[:, None],
        ids,
        key_ids,
        biases,
        *slopes,
        *tables,
        query,
        *[key] * len(extended),
        *[value] * len(extended),
        *gradient,
        *([statistics] if is_backward else []),
    )


def _with_halos(x, parts, fill):
    """Returns x [B, L, ...] as [B, segments, size + 2 halo, ...], with `fill` before and after the row."""
    around = [(0, 0), (parts.halo, parts.halo), *[(0, 0)] * (x.ndim - 2)]
    padded = jnp.pad(x, around, constant_values=fill)
    starts = range(0, parts.count * parts.size, parts.size)
    return jnp.stack([padded[:, start : start + parts.extended] for start in starts], axis=1)


@dataclasses.dataclass(frozen=True)
class _Step:
    """The inputs of a step of the grid, as references.

    `prepared` are the keys, values and key ids of the segments of the rows with their halos. The ids are
    repeated in all lanes, because they are compared with query ids. `before` is the number of tokens before
    the segment.
    """

    options: blocks.AttentionOptions
    parts: Segments
    slopes: list[jax.Array] | None
    tables: Sequence[Any]
    biases: Any
    query: Any
    query_ids: Any
    prepared: Sequence[Any]
    before: jax.Array

    def prepare(self, row, key_ids, sources) -> None:
        """Prepares the rotated keys and the values of a row."""
        parts = self.parts
        *kept, ids = self.prepared
        ids[row] = widened(in_rows(key_ids[row, 0]), parts.block)
        places = (0,) if len(sources) == 2 else (parts.halo, 0, parts.halo + parts.size)
        for number, array in enumerate(sources):
            of_value, part = divmod(number, len(places))
            tokens = pl.ds(places[part], array.shape[1])
            x = blocks.biased(array[row], self.biases[of_value + 1 : of_value + 2])
            if not of_value:
                x = blocks.rotated(self.options, x, [table[row, 0, tokens] for table in self.tables])
            kept[of_value][row, tokens] = x.astype(array.dtype)

    def read(self, row, seeds, queries):
        """Returns the keys for a block of queries, as positions in the extended segment.

        The second result is the arguments of `blocks.attend`.
        """
        options, parts = self.options, self.parts
        first = jnp.clip(queries.start + parts.halo - parts.reach, 0, parts.extended - parts.span)
        keys = pl.ds(pl.multiple_of(first, _ALIGNED), parts.span)
        q = blocks.biased(self.query[row, queries], self.biases[0:1])
        q = blocks.scaled(options, self.rotated(q, row, queries)).astype(self.query.dtype)
        k, v, key_ids = (kept[row, keys] for kept in self.prepared)
        of_queries = pl.ds(self.before + queries.start, queries.size)
        of_keys = pl.ds(self.before - parts.halo + keys.start, keys.size)
        ids = self.query_ids[row, 0, :, queries], key_ids
        mask = blocks.masker(options, self.slopes, *ids, of_queries, of_keys)
        drop = blocks.dropper(options, seeds, parts.count * parts.size, of_queries, of_keys)
        return keys, (q, k, v, mask, drop)

    def rotated(self, x, row, queries, back=False):
        """Returns queries rotated, or their gradient rotated `back`."""
        tokens = pl.ds(queries.start + self.parts.halo, queries.size)
        return blocks.rotated(self.options, x, [table[row, 0, tokens] for table in self.tables], back)


def _forward(options, parts, table_count, seeds, query_ids, key_ids, biases, *arrays):
    slopes, arrays = blocks.slopes_of(options, arrays)
    tables, (query, *sources), arrays = arrays[:table_count], arrays[table_count:-5], arrays[-5:]
    out, statistics, *prepared = arrays
    before = pl.program_id(2) * parts.size
    step = _Step(options, parts, slopes, tables, biases, query, query_ids, prepared, before)
    of_rows = blocks.seeds_of(options, seeds)
    for row in range(len(of_rows)):
        step.prepare(row, key_ids, sources)

    def attend(row, queries):
        _, inputs = step.read(row, of_rows[row], queries)
        out[row, queries], results = yield from blocks.attend(options, *inputs)
        for head, each in enumerate(results):
            statistics[row, 0, head : head + 1, queries] = each

    _for_each_block(options, parts, len(of_rows), attend)


def _backward(options, parts, table_count, seeds, query_ids, key_ids, biases, *arrays):
    slopes, arrays = blocks.slopes_of(options, arrays)
    count = 11 if parts.count > 1 else 9
    tables, inputs, arrays = arrays[:table_count], arrays[table_count:-count], arrays[-count:]
    query, *sources, gradient, statistics = inputs
    d_query, d_key, d_value, sums, *prepared = arrays[:7]
    # Gradients from this segment's queries, and the gradients so far of the previous segment and its halo.
    totals, kept = arrays[7:9], arrays[9:]
    of_rows = blocks.seeds_of(options, seeds)
    number, size, halo = pl.program_id(2), parts.size, parts.halo
    step = _Step(options, parts, slopes, tables, biases, query, query_ids, prepared, number * size)

    @pl.when(number == 0)
    def _():
        for array in (sums, *kept):
            array[...] = jnp.zeros(array.shape, jnp.float32)

    def add_to_sum(place, x):
        sums[0, place : place + 1] += jnp.sum(x, axis=0, keepdims=True)

    def differentiate(row, queries):
        keys, (q, k, v, mask, drop) = step.read(row, of_rows[row], queries)

        def statistics_of(head):
            return statistics[row, 0, head : head + 1, queries]

        def add(head, place, x):
            totals[place][row, keys] += x

        x = yield from blocks.differentiate(
            options, q, k, v, gradient[row, queries], statistics_of, mask, drop, add
        )
        x = step.rotated(x, row, queries, back=True)
        d_query[row, queries] = x.astype(d_query.dtype)
        add_to_sum(0, x)

    def write(row, place, out, x):
        add_to_sum(place + 1, x)
        if not kept:
            out[row] = x.astype(out.dtype)
            return
        last = kept[place]
        out[row, : size - halo] = last[: size - halo].astype(out.dtype)
        out[row, size - halo :] = (last[size - halo : size] + x[:halo]).astype(out.dtype)
        last[:halo] = last[size:] + x[halo : 2 * halo]
        last[halo:] = x[2 * halo :]

    @pl.when(number < parts.count)
    def _():
        for row in range(len(of_rows)):
            step.prepare(row, key_ids, sources)
        for total in totals:
            total[...] = jnp.zeros(total.shape, jnp.float32)
        _for_each_block(options, parts, len(of_rows), differentiate)
        for row in range(len(of_rows)):
            x = totals[0][row] * options.key_scale
            x = blocks.rotated(options, x, [table[row, 0] for table in tables], back=True)
            write(row, 0, d_key, x)
            write(row, 1, d_value, totals[1][row] * options.value_scale)

    if kept:

        @pl.when(number == parts.count)
        def _():
            for last, out in zip(kept, (d_key, d_value), strict=True):
                out[0] = last[:size].astype(out.dtype)


def _for_each_block(options, parts, rows, work):
    """Runs work(row, queries) for the blocks of queries of the segments, some of which start together.

    With more such blocks, the chip's units are better used. Several rows have few blocks and need no loop.
    """
    most = _KEYS_TOGETHER if options.heads <= 2 or blocks.has_room() else _FEWER_TOGETHER
    together = max(1, 2 * most * _BLOCK // (max(2, options.heads) * parts.span * parts.block))
    of_row = parts.size // parts.block
    count = rows * of_row
    together = next(number for number in range(together, 0, -1) if not count % number)

    def some(number, _=None):
        begun = []
        for place in (number * together + i for i in range(together)):
            row, block = divmod(place, of_row) if rows > 1 else (0, place)
            begun.append(work(row, pl.ds(pl.multiple_of(block * parts.block, _BLOCK), parts.block)))
        for each in begun:
            next(each)
        for each in begun:
            next(each, None)

    if rows > 1:
        for number in range(count // together):
            some(number)
    else:
        jax.lax.fori_loop(0, count // together, some, None)
