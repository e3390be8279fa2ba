"""Dropout with a mask that is hashed from the element's index.

No mask is stored, and XLA fuses the hash into the neighboring operations. Sampling the bits with threefry
would cost 14 to 50% of a train step. Here the indices on all axes but the last are hashed to one word, and
the index on the last axis (the column) is hashed to another. An element is kept if the product of its two
words, modulo 2**32, is large enough, which is one operation for each element. Both words are odd, so that the
product takes every odd value equally often. A mask depends only on the key and the elements' global indices,
so it is the same on every mesh, and for any number of microbatches.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

# Multipliers of an integer hash with low bias, found by C. Wellons by search ("hash-prospector").
_M1 = np.uint32(0x21F0AAAD)
_M2 = np.uint32(0x735A2D97)

# The hash of a column with this bit is the hash of the column without it, times 2**16 + 1.
_PAIR = 128

# Columns are hashed as a row that no batch has.
_NO_ROW = np.array([2**32 - 1], np.uint32)

_dropout_rows: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("dropout_rows", default=None)


@contextlib.contextmanager
def dropout_rows(ids: jax.Array) -> Iterator[None]:
    """Makes programs that are traced inside the block sample the masks of rows `ids` of a larger batch.

    Outside of the block, the rows are 0, 1, 2, ... The ids are integers [rows]. An array with k times as many
    rows has k consecutive rows for each id, such as the rows of a question with k choices.
    """
    token = _dropout_rows.set(jnp.asarray(ids, jnp.uint32))
    try:
        yield
    finally:
        _dropout_rows.reset(token)


def row_numbers(rows: int) -> jax.Array:
    """Returns uint32 [rows], the row numbers in the batch: the ids of `dropout_rows`, or 0, 1, 2, ..."""
    ids = _ids_in_context(rows)
    return jnp.arange(rows, dtype=jnp.uint32) if ids is None else ids


def _ids_in_context(rows: int) -> jax.Array | None:
    """Returns uint32 [rows] from `dropout_rows`; None outside of it, where the rows are 0, 1, 2, ..."""
    ids = _dropout_rows.get()
    if ids is None or ids.shape[0] == rows:
        return ids
    each, rest = divmod(rows, ids.shape[0])
    if rest:
        raise ValueError(f"an array of {rows} rows inside dropout_rows of {ids.shape[0]}")
    return (ids[:, None] * np.uint32(each) + jnp.arange(each, dtype=jnp.uint32)).reshape(-1)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * _M1
    x = (x ^ (x >> 15)) * _M2
    return x ^ (x >> 15)


def row_seeds(
    key: jax.Array, rows: int, ids: jax.typing.ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns two uint32 [rows], the seeds from which the mask of each row is hashed.

    Because each row has seeds, the index inside a row fits in 32 bits for any batch size. `ids` are the
    positions of the rows in the whole batch: 0, 1, 2, ... if None.
    """
    seeds = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    seeds = seeds.reshape(-1)[:2].astype(jnp.uint32)
    row = jnp.arange(rows, dtype=jnp.uint32) if ids is None else jnp.asarray(ids)
    return _mix(row ^ seeds[0]), _mix((row + np.uint32(0x9E3779B9)) ^ seeds[1])


def kernel_seeds(key: jax.Array | None, rows: int) -> jax.Array:
    """Returns the seeds for the masks of the Pallas kernels, int32 [rows, 4]; zeros without a key.

    They are the two seeds of each row, and the two seeds of columns, which are the same for all rows.
    """
    if key is None:
        return jnp.zeros((rows, 4), jnp.int32)
    of_columns = (jnp.broadcast_to(seed, rows) for seed in row_seeds(key, 1, _NO_ROW))
    seeds = (*row_seeds(key, rows, _ids_in_context(rows)), *of_columns)
    return jax.lax.bitcast_convert_type(jnp.stack(seeds, axis=1), jnp.int32)


def _hash(index: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    x = index ^ first
    x = (x ^ (x >> 16)) * _M1
    x = ((x ^ (x >> 15)) + second) * _M2
    return x ^ (x >> 15)


def row_hash(index: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the hash of all indices but the last, uint32, with both seeds of the row from `row_seeds`.

    `index`, uint32, is the index on all axes but the first and the last, in the order of memory.
    """
    return _hash(index, first, second) | np.uint32(1)


def column_hash(column: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the hash of the index on the last axis, both uint32, with two seeds from `kernel_seeds`."""
    of_pair = column & np.uint32(_PAIR)
    hashed = _hash(column - of_pair, first, second) | np.uint32(1)
    return jnp.where(of_pair == 0, hashed, hashed + (hashed << 16))


def keep(row_hashes: jax.Array, column_hashes: jax.Array, rate: float) -> jax.Array:
    """Returns whether elements are kept, as bool; both hashes are broadcast to the shape of the elements."""
    return row_hashes * column_hashes >= threshold(rate)


def threshold(rate: float) -> np.uint32:
    """Returns the smallest product that is kept."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float, ids: jax.Array | None = None) -> jax.Array:
    """Returns a Bernoulli(1 - rate) mask.

    Args:
        key: a typed PRNG key or its data, uint32 [2].
        shape: [rows, ...]; with fewer than 2**32 - 1 rows and at most 2**32 indices on the axes between.
        rate: probability of False, exact to 2**-31.
        ids: uint32 [rows], positions of the rows in the whole batch: 0, 1, 2, ... if None.

    Returns:
        bool array of `shape`.
    """
    *outer, size = shape if len(shape) > 1 else (*shape, 1)
    by_row = (shape[0], *[1] * len(outer))
    first, second = (seeds.reshape(by_row) for seeds in row_seeds(key, shape[0], ids))
    index, stride = jnp.zeros((1, *outer[1:], 1), jnp.uint32), 1
    for axis in range(len(outer) - 1, 0, -1):
        index += jax.lax.broadcasted_iota(jnp.uint32, index.shape, axis) * np.uint32(stride)
        stride *= shape[axis]
    columns = column_hash(jnp.arange(size, dtype=jnp.uint32), *row_seeds(key, 1, _NO_ROW))
    # If they were fused with the product, the hashes would be recomputed for every element.
    rows, columns = jax.lax.optimization_barrier((row_hash(index, first, second), columns))
    return keep(rows, columns, rate).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x: jax.Array, seeds: jax.Array, ids: jax.Array | None, rate: float) -> jax.Array:
    mask = keep_mask(seeds, x.shape, rate, ids)
    # In float32, as in the kernels. Rounding the factor to bfloat16 would change the mean by up to .3%.
    scaled = (x.astype(jnp.float32) * jnp.float32(1 / (1 - rate))).astype(x.dtype)
    return jnp.where(mask, scaled, jnp.zeros((), x.dtype))


def _dropout_fwd(x, seeds, ids, rate):
    return _dropout(x, seeds, ids, rate), (seeds, ids)


def _dropout_bwd(rate, rows, g):
    no_gradient = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), rows)
    return _dropout(g, *rows, rate), *no_gradient


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def dropout(x: jax.Array, key: jax.Array | None, rate: float, in_batch: bool = True) -> jax.Array:
    """Zeroes each element of x with probability `rate` and scales the others by 1/(1 - rate).

    The mask depends on the key, the row's index in the batch (see `dropout_rows`) and the index in the row.

    Args:
        x: [rows, ...], any float dtype.
        key: a typed PRNG key; None disables dropout.
        rate: in [0, 1).
        in_batch: whether the rows of x are rows of the batch; False for a table that all rows read.
    """
    if key is None or rate == 0:
        return x
    # The context is read here and not in the backward pass, which may be traced outside of the context.
    ids = _ids_in_context(x.shape[0]) if in_batch else None
    return _dropout(x, jax.random.key_data(key).reshape(-1)[:2], ids, rate)
