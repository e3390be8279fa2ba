"""Dropout with a mask that is hashed from the element's index.

No mask is stored, and XLA fuses the hash into the neighboring operations. Drawing the bits with threefry
costs 14 to 50% of a train step. Here a hash of two integer products is computed inside the fusion that uses
it, once forward and once backward, and serves two elements. A mask depends only on the key and the elements'
global indices, so it is the same on every mesh, and for any number of parts that a batch is computed in.
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

# Distance on the last axis between two elements that share a hash: the number of lanes of a TPU's vector
# register, so that a kernel joins the masks of both without moving elements between lanes.
PAIR = 128
_PAIR = np.uint32(PAIR)
_TO_SHIFT = np.uint32(3)  # from PAIR to 16, half of the bits


_row_ids: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("row_ids", default=None)


@contextlib.contextmanager
def row_ids(ids: jax.Array) -> Iterator[None]:
    """Makes programs traced inside the block draw the masks of these rows of a larger batch.

    Outside of it the rows are 0, 1, 2, ...

    Args:
        ids: integers [rows]. An array with k times as many rows has k consecutive rows for each id, such as
            the rows of a question with k choices.
    """
    token = _row_ids.set(jnp.asarray(ids, jnp.uint32))
    try:
        yield
    finally:
        _row_ids.reset(token)


def row_numbers(rows: int) -> jax.Array:
    """Returns uint32 [rows], the numbers of rows in the whole batch: those of `row_ids`, or 0, 1, 2, ..."""
    ids = _ids_in_context(rows)
    return jnp.arange(rows, dtype=jnp.uint32) if ids is None else ids


def _ids_in_context(rows: int) -> jax.Array | None:
    """Returns uint32 [rows] from `row_ids`; None outside of it, where the rows are 0, 1, 2, ..."""
    ids = _row_ids.get()
    if ids is None or ids.shape[0] == rows:
        return ids
    each, rest = divmod(rows, ids.shape[0])
    if rest:
        raise ValueError(f"an array of {rows} rows inside row_ids of {ids.shape[0]}")
    return (ids[:, None] * np.uint32(each) + jnp.arange(each, dtype=jnp.uint32)).reshape(-1)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * _M1
    x = (x ^ (x >> 15)) * _M2
    return x ^ (x >> 15)


def row_words(key: jax.Array, rows: int, ids: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """Returns two uint32 [rows] that the mask of each row is hashed from.

    With them the index inside a row fits in 32 bits however large the batch is. `ids` are the positions of
    the rows in the whole batch: 0, 1, 2, ... if None.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    words = words.reshape(-1)[:2].astype(jnp.uint32)
    row = jnp.arange(rows, dtype=jnp.uint32) if ids is None else ids
    return _mix(row ^ words[0]), _mix((row + np.uint32(0x9E3779B9)) ^ words[1])


def kernel_words(key: jax.Array | None, rows: int) -> jax.Array:
    """Returns `row_words` in the format of the Pallas kernels, int32 [rows, 2]; zeros without a key."""
    if key is None:
        return jnp.zeros((rows, 2), jnp.int32)
    return jax.lax.bitcast_convert_type(
        jnp.stack(row_words(key, rows, _ids_in_context(rows)), axis=1), jnp.int32
    )


def _hash(index: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    x = index ^ first
    x = (x ^ (x >> 16)) * _M1
    x = ((x ^ (x >> 15)) + second) * _M2
    return x ^ (x >> 15)


def pair(place: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns which hash decides on an element, and how.

    An element and the one `PAIR` places further on the last axis share a hash: the first is kept if the hash
    is large enough, the second if the lower half of its bits is.

    Args:
        place: uint32, the place on the last axis.

    Returns:
        uint32, the place of the first element of the pair, and the `shift` of `keep`.
    """
    half = place & _PAIR
    return place - half, half >> _TO_SHIFT


def keep(
    index: jax.Array, shift: jax.Array, first: jax.Array, second: jax.Array, least: np.uint32
) -> jax.Array:
    """Returns whether elements of a row are kept, as bool.

    Args:
        index: uint32, the index inside the row of the first element of the `pair`.
        shift: by how many bits the hash is shifted before it is compared.
        first: the first value of the row from `row_words`.
        second: the second one.
        least: smallest value that is kept, see `threshold`.
    """
    return _hash(index, first, second) << shift >= least


def keep_pair(
    index: jax.Array, first: jax.Array, second: jax.Array, least: np.uint32
) -> tuple[jax.Array, jax.Array]:
    """Returns `keep` of elements at `index`, the first ones of their pairs, and of the second ones."""
    shared = _hash(index, first, second)
    return shared >= least, shared << 16 >= least


def keep_lines(
    line: jax.Array, size: int, axis: int, first: jax.Array, second: jax.Array, least: np.uint32
) -> jax.Array:
    """Returns `keep` of whole lines, with each hash computed once.

    Args:
        line: uint32, the index inside the row of the first element of each line; of size 1 along `axis`.
        size: the size of the last axis, a multiple of `PAIR`.
        axis: the axis of the result along which that axis lies, of the two.
        first: as in `keep`.
        second: as in `keep`.
        least: as in `keep`.

    Returns:
        bool, of shape [lines, size] or [size, lines].
    """
    values = []
    for start in range(0, size, 2 * PAIR):
        shape = (PAIR, line.shape[1]) if axis == 0 else (line.shape[0], PAIR)
        place = jax.lax.broadcasted_iota(jnp.int32, shape, axis).astype(jnp.uint32) + np.uint32(start)
        shared = _hash(line + place, first, second)
        values += [shared, shared << 16][: (size - start) // PAIR]
    return jnp.concatenate(values, axis) >= least


def threshold(rate: float) -> np.uint32:
    """Returns the smallest hash value that is kept."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float, ids: jax.Array | None = None) -> jax.Array:
    """Returns a Bernoulli(1 - rate) mask.

    Args:
        key: a typed PRNG key or its data, uint32 [2].
        shape: [rows, ...]; there must be fewer than 2**32 rows and fewer than 2**32 elements per row.
        rate: probability of False, exact to 2**-16.
        ids: uint32 [rows], positions of the rows in the whole batch: 0, 1, 2, ... if None.

    Returns:
        bool array of `shape`.
    """
    by_row = (shape[0],) + (1,) * (len(shape) - 1)
    first, second = (words.reshape(by_row) for words in row_words(key, shape[0], ids))

    def places(axis):
        return jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis)

    line, stride = jnp.zeros((1, *shape[1:]), jnp.uint32), shape[-1]
    for axis in range(len(shape) - 2, 0, -1):
        line += places(axis) * np.uint32(stride)
        stride *= shape[axis]
    place, shift = pair(places(len(shape) - 1))
    return keep(line + place, shift, first, second, threshold(rate))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x: jax.Array, words: jax.Array, ids: jax.Array | None, rate: float) -> jax.Array:
    kept = keep_mask(words, x.shape, rate, ids)
    return jnp.where(kept, x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros((), x.dtype))


def _dropout_fwd(x, words, ids, rate):
    return _dropout(x, words, ids, rate), (words, ids)


def _dropout_bwd(rate, rows, g):
    no_gradient = jax.tree.map(lambda x: np.zeros(x.shape, jax.dtypes.float0), rows)
    return _dropout(g, *rows, rate), *no_gradient


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Zeroes each element of x with probability `rate` and scales the others by 1/(1 - rate).

    The mask depends on the key, the row's position in the batch (see `row_ids`) and the position in the row.

    Args:
        x: [rows, ...], any float dtype.
        key: a typed PRNG key; None disables dropout.
        rate: in [0, 1).
    """
    if key is None or rate == 0:
        return x
    # The context is read here and not in the backward pass, which may be traced outside of the context.
    return _dropout(x, jax.random.key_data(key).reshape(-1)[:2], _ids_in_context(x.shape[0]), rate)
