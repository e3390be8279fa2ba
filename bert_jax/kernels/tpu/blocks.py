"""Attention of a block of queries to a block of keys, inside the Pallas kernels for TPU.

The kernels take queries, keys and values in the layout of the projections, [B, L, N D], and process 128 lanes
at a time, which is one or more heads. A matmul for one head is computed by setting the lanes of the other
heads to zero; the matrix unit would have been idle for them anyway. Logits have the keys along sublanes and
the queries along lanes. Sums over keys are then sums of registers, and only [L, 128] arrays are transposed
for matmuls.

`attend` and `differentiate` are generators that yield once, after the matmuls that need no softmax. A caller
that starts several blocks before it continues the first one keeps the matrix units busy while the vector
units compute a softmax.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels.dispatch import LANES
from bert_jax.kernels.dropout import column_hash, keep, row_hash
from bert_jax.kernels.matmul import dot
from bert_jax.kernels.xla_attention import MASKED

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_LN_2 = math.log(2)

T = TypeVar("T")
# A function (head, x) of a head's array [keys, queries].
ByHead = Callable[[int, jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class AttentionOptions:
    """Options of attention; `attention.attention` describes the fields."""

    head_size: int
    causal: bool
    window: int
    rate: float
    has_slopes: bool
    interpret: bool

    @property
    def heads(self) -> int:
        """Returns the number of heads in a block of 128 lanes."""
        return LANES // self.head_size

    @property
    def value_scale(self) -> float:
        """Returns the factor for the sums that `differentiate` adds for values."""
        return 1 / (1 - self.rate)

    @property
    def key_scale(self) -> float:
        """Returns the factor for the sums that `differentiate` adds for keys."""
        return _LN_2 * self.value_scale


def attend(
    options: AttentionOptions, query: jax.Array, key: jax.Array, value: jax.Array, mask: ByHead, drop: ByHead
) -> Generator[None, None, tuple[jax.Array, list[jax.Array]]]:
    """Returns attention [queries, 128] in the dtype of the query, and the statistics for `differentiate`.

    The query [queries, 128] is biased, rotated and `scaled`. The key [keys, 128] is biased and rotated, the
    value [keys, 128] biased. `mask` and `drop` are results of `masker` and `dropper`. The statistics are the
    binary logarithms of the softmax's denominators, float32 [1, queries] for each head.
    """
    logits = _logits(options, query, key, mask)
    yield
    values, contexts, statistics = value.T, [], []
    for head in range(options.heads):
        largest = jnp.max(logits[head], axis=0, keepdims=True)
        exponentials = jnp.exp2(logits[head] - largest)
        denominators = jnp.sum(exponentials, axis=0, keepdims=True)
        statistics.append(largest + log2(denominators))
        exponentials = drop(head, exponentials).astype(value.dtype)
        context = dot(values[features(options, head)], exponentials, (1, 0))
        contexts.append((context / (denominators * (1 - options.rate))).astype(query.dtype))
    return jnp.concatenate(contexts).T, statistics


def attend_running(
    options: AttentionOptions,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: ByHead,
    drop: ByHead,
    contexts,
    largest,
    denominators,
) -> None:
    """Adds the contribution of a block of keys to float32 references; see `attend`.

    `largest` [heads, queries] are the largest logits so far, `denominators` the sums of the exponentials of
    logits minus `largest`, and `contexts` [128, queries] the sums of values times exponentials.
    """
    logits = _logits(options, query, key, mask)
    values = value.T
    for head in range(options.heads):
        each, lanes = slice(head, head + 1), features(options, head)
        before = largest[each]
        largest[each] = now = jnp.maximum(before, jnp.max(logits[head], axis=0, keepdims=True))
        factor = jnp.exp2(before - now)
        exponentials = jnp.exp2(logits[head] - now)
        denominators[each] = denominators[each] * factor + jnp.sum(exponentials, axis=0, keepdims=True)
        exponentials = drop(head, exponentials).astype(value.dtype)
        contexts[lanes] = contexts[lanes] * factor + dot(values[lanes], exponentials, (1, 0))


def differentiate(
    options: AttentionOptions,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    gradient: jax.Array,
    statistics: Callable[[int], jax.Array],
    mask: ByHead,
    drop: ByHead,
    add: Callable[[int, int, jax.Array], None],
    inner: Callable[[int], jax.Array] | None = None,
) -> Generator[None, None, jax.Array]:
    """Returns the gradient of the query of `attend`, float32 [queries, 128], for the result's gradient.

    Inputs:
        gradient: the gradient of the result, [queries, 128].
        statistics: function (head) that returns the statistics of `attend`.
        add: procedure (head, place, x) that adds x, float32 [keys, 128], to the gradient of the key if
            `place` is 0, or of the value if it is 1. The caller finally multiplies the sums by
            `options.key_scale` and `options.value_scale`.
        inner: function (head) that returns the sums over all keys of probabilities times their gradients
            before the factor of dropout, float32 [1, queries]; None if the block contains all keys.
    """
    logits = _logits(options, query, key, mask)
    d_weights = [dot(value, only(gradient, lanes), (1, 1)) for lanes in _heads(options)]
    yield
    transposed, d_queries = key.T, []
    for head, lanes in enumerate(_heads(options)):
        weights = jnp.exp2(logits[head] - statistics(head))
        d_probabilities = drop(head, d_weights[head])
        sums = jnp.sum(weights * d_probabilities, axis=0, keepdims=True) if inner is None else inner(head)
        d_logits = (weights * (d_probabilities - sums)).astype(query.dtype)
        d_queries.append(dot(transposed[features(options, head)], d_logits, (1, 0)))
        add(head, 0, dot(d_logits, only(query, lanes), (1, 0)))
        add(head, 1, dot(drop(head, weights).astype(query.dtype), only(gradient, lanes), (1, 0)))
    return jnp.concatenate(d_queries).T * (options.head_size**-0.5 * options.value_scale)


def biased(x: jax.Array, bias: jax.Array) -> jax.Array:
    """Returns x [L, 128] with its bias [1, 128], float32."""
    return x.astype(jnp.float32) + bias


def scaled(options: AttentionOptions, query: jax.Array) -> jax.Array:
    """Returns a scaled query. The exponentials of the softmax are 2 to the power of its logits."""
    return query * (options.head_size**-0.5 / _LN_2)


def rotated(
    options: AttentionOptions, x: jax.Array, tables: Sequence[jax.Array], back: bool = False
) -> jax.Array:
    """Returns x [L, 128] rotated (or `back`) by tables of cosines and sines [L, 128]; x without tables."""
    if not tables:
        return x
    cosine, sine = tables
    half = options.head_size // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    ahead, behind = pltpu.roll(x, LANES - half, 1), pltpu.roll(x, half, 1)
    partner = jnp.where(lane % options.head_size < half, ahead, behind)
    return x * cosine + partner * (-sine if back else sine)


def run(work: Generator[None, None, T]) -> T:
    """Runs a generator to its end, and returns its result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        return end.value


def log2(x: jax.Array) -> jax.Array:
    """Returns the binary logarithm."""
    return jnp.log(x) / _LN_2


def seeds_of(options: AttentionOptions, seeds) -> list[tuple[jax.Array, ...]]:
    """Returns the seeds of each row, see `dropout.kernel_seeds`, and the number of the block's first head."""
    block = pl.program_id(1) * options.heads
    of_rows = ([seeds[row, 0, i] for i in range(5)] for row in range(seeds.shape[0]))
    return [(*(word.astype(jnp.uint32) for word in of_row), head + block) for *of_row, head in of_rows]


def dropper(
    options: AttentionOptions, seeds: tuple[jax.Array, ...], length: int, queries: pl.Slice, keys: pl.Slice
) -> ByHead:
    """Returns a function (head, x) that applies dropout to probabilities [keys, queries] or their gradient.

    `seeds` is a result of `seeds_of`. `queries` and `keys` are positions in a row of `length` tokens. The
    caller applies the factor 1 / (1 - rate) to sums over the elements, which are fewer.
    """
    if not options.rate:
        return lambda head, x: x
    *of_rows, first_of_columns, second_of_columns, first_head = seeds
    query = jax.lax.broadcasted_iota(jnp.int32, (1, queries.size), 1) + queries.start
    key = jax.lax.broadcasted_iota(jnp.int32, (1, keys.size), 1) + keys.start
    columns = column_hash(key.astype(jnp.uint32), first_of_columns, second_of_columns)
    columns = widened(in_rows(columns), query.shape[1])

    def drop(head, x):
        rows = row_hash(((first_head + head) * length + query).astype(jnp.uint32), *of_rows)
        return jnp.where(keep(rows, columns, options.rate), x, 0.0)

    return drop


def masker(
    options: AttentionOptions,
    slopes: list[jax.Array] | None,
    query_ids: jax.Array,
    key_ids: jax.Array,
    queries: pl.Slice,
    keys: pl.Slice,
) -> ByHead:
    """Returns a function (head, x) that masks logits [keys, queries] where a query may not attend to a key.

    It also subtracts the distance of key and query times the head's slope from `slopes_of`. The query ids are
    int32 [1, queries]. The key ids are [keys, 1], or [keys, queries] with the same id in all of a row.
    """
    allowed = query_ids == key_ids
    if options.causal or options.window or options.has_slopes:
        shape = keys.size, queries.size
        query = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + queries.start
        key = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + keys.start
        if options.causal:
            allowed &= key <= query
        if options.window:
            allowed &= jnp.abs(key - query) <= options.window
    if slopes is None:
        return lambda head, x: jnp.where(allowed, x, MASKED)
    distance = jnp.abs(key - query).astype(jnp.float32)
    return lambda head, x: jnp.where(allowed, x - distance * slopes[head], MASKED)


def slopes_inputs(slopes: jax.Array | None) -> tuple[list[pl.BlockSpec], list[jax.Array]]:
    """Returns a kernel's block specs and inputs for slopes, float32 [N] or None."""
    if slopes is None:
        return [], []
    return [pl.BlockSpec(memory_space=pltpu.SMEM)], [slopes[None]]


def slopes_of(
    options: AttentionOptions, arrays: Sequence[Any]
) -> tuple[list[jax.Array] | None, Sequence[Any]]:
    """Returns the slopes of a block's heads, scaled for base-2 exponentials, and the other arrays."""
    if not options.has_slopes:
        return None, arrays
    first = pl.program_id(1) * options.heads
    return [arrays[0][0, first + head] / _LN_2 for head in range(options.heads)], arrays[1:]


def result_shapes(
    options: AttentionOptions, query: jax.Array, steps: int | None = None
) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of a kernel's results for a query [B, L, N D].

    The forward kernel (no `steps`) returns attention and the statistics, float32 [B, N D / 128, heads, L].
    The backward kernel returns the gradients of query, key and value, and their sums over a step's tokens.
    """
    batch, length, width = query.shape
    like = jax.ShapeDtypeStruct(query.shape, query.dtype)
    if steps is None:
        return [like, jax.ShapeDtypeStruct((batch, width // LANES, options.heads, length), jnp.float32)]
    return [like, like, like, jax.ShapeDtypeStruct((steps, 3, width), jnp.float32)]


def features(options: AttentionOptions, head: int) -> slice:
    """Returns the slice of a head in a block of 128 features."""
    return slice(head * options.head_size, (head + 1) * options.head_size)


def _heads(options):
    """Returns bool [1, 128] for each head of a block: which lanes belong to it."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    return [
        (lane >= first) & (lane < first + options.head_size) for first in range(0, LANES, options.head_size)
    ]


def only(x: jax.Array, lanes: jax.Array) -> jax.Array:
    """Returns x [L, 128] with zeros except in some lanes, bool [1, 128]."""
    return jnp.where(lanes, x, jnp.zeros_like(x))


def _logits(options, query, key, mask):
    """Returns the binary logarithms of the softmax's exponentials, float32 [keys, queries] for each head."""
    return [mask(head, dot(only(key, lanes), query, (1, 1))) for head, lanes in enumerate(_heads(options))]


def in_rows(x: jax.Array) -> jax.Array:
    """Returns 32-bit integers x [1, n] as [n, 128], with the same values in each lane.

    As [1, n] they fill the registers, so computing x takes the fewest operations.
    """
    return jnp.broadcast_to(x.astype(jnp.int32), (LANES, x.shape[1])).T.astype(x.dtype)


def widened(x: jax.Array, columns: int) -> jax.Array:
    """Returns x [n, 128] as [n, columns], repeated; `columns` is a multiple of 128."""
    return jnp.concatenate([x] * (columns // LANES), axis=1)


def has_room() -> bool:
    """Returns whether the TPU that is being traced for has more vector memory than v4, 16 MiB."""
    try:
        return pltpu.get_tpu_info().vmem_capacity_bytes > 16 * 2**20
    except ValueError:  # not a TPU, or one that jax does not know
        return False


def memory_limit(mebibytes: int) -> int | None:
    """Returns the bytes of vector memory that a kernel may use; None for the compiler's default, as on v4.

    While the kernel runs, the program around it cannot use these bytes.
    """
    return mebibytes * 2**20 if has_room() else None


def cost(
    options: AttentionOptions, arrays: Sequence[jax.Array], keys: int, is_backward: bool = False
) -> pl.CostEstimate:
    """Returns the cost of a kernel that reads `arrays` [B, L, N D] and multiplies a query by `keys` keys."""
    # For each pair of a query and a key, and each head: two matmuls over D and one result of this shape in
    # the forward pass, five matmuls and three results in the backward pass.
    batch, length, width = arrays[0].shape
    pairs = batch * length * keys
    products, written = (5, 3) if is_backward else (2, 1)
    return pl.CostEstimate(
        flops=2 * products * width * pairs,
        transcendentals=width // options.head_size * pairs,
        bytes_accessed=(len(arrays) + written) * arrays[0].size * arrays[0].dtype.itemsize,
    )
