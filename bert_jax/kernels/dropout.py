"""Dropout with a mask that is hashed from the element's index.

No mask is stored, and XLA fuses the hash into the neighboring operations. Drawing the bits with threefry
costs 14 to 50% of a train step. Here the indices on all axes but the last, which are a line, are hashed to
one word, the place on the last axis is hashed to another, and an element is kept if the product of its two
words, modulo 2**32, is large enough: that is one operation for each element. Both words are odd, so that the
product takes every odd value equally often. A mask depends only on the key and the elements' global indices,
so it is the same on every mesh, and for any number of parts that a batch is computed in.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

# Multipliers of an integer hash with low bias, found by C. Wellons by search ("hash-prospector").
_M1 = np.uint32(0x21F0AAAD)
_M2 = np.uint32(0x735A2D97)

# The word of a place whose number has this bit is that of the place without the bit, times 2**16 + 1, so that
# a shift and a sum can replace every second product. It is the number of lanes of a TPU's vector register:
# no element moves between lanes for it.
PAIR = 128

# The words of places are hashed as those of a row that no batch has.
_NO_ROW = np.array([2**32 - 1], np.uint32)

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


def row_words(
    key: jax.Array, rows: int, ids: jax.typing.ArrayLike | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns two uint32 [rows] that the mask of each row is hashed from.

    With them the index inside a row fits in 32 bits however large the batch is. `ids` are the positions of
    the rows in the whole batch: 0, 1, 2, ... if None.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    words = words.reshape(-1)[:2].astype(jnp.uint32)
    row = jnp.arange(rows, dtype=jnp.uint32) if ids is None else jnp.asarray(ids)
    return _mix(row ^ words[0]), _mix((row + np.uint32(0x9E3779B9)) ^ words[1])


def kernel_words(key: jax.Array | None, rows: int) -> jax.Array:
    """Returns what the Pallas kernels hash masks from, int32 [rows, 4]; zeros without a key.

    They are the two words of each row from `row_words`, and the two that words of places are hashed from, the
    same for all rows.
    """
    if key is None:
        return jnp.zeros((rows, 4), jnp.int32)
    of_places = (jnp.broadcast_to(word, rows) for word in row_words(key, 1, _NO_ROW))
    words = (*row_words(key, rows, _ids_in_context(rows)), *of_places)
    return jax.lax.bitcast_convert_type(jnp.stack(words, axis=1), jnp.int32)


def _hash(index: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    x = index ^ first
    x = (x ^ (x >> 16)) * _M1
    x = ((x ^ (x >> 15)) + second) * _M2
    return x ^ (x >> 15)


def line_words(line: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the words of lines, uint32.

    Args:
        line: uint32, the index of the line inside its row.
        first: the first word of the row from `row_words`.
        second: the second one.
    """
    return _hash(line, first, second) | np.uint32(1)


def place_words(place: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
    """Returns the words of places on the last axis, uint32.

    Args:
        place: uint32.
        first: the first word for places from `kernel_words`.
        second: the second one.
    """
    of_pair = place & np.uint32(PAIR)
    word = _hash(place - of_pair, first, second) | np.uint32(1)
    return jnp.where(of_pair == 0, word, _second_of_pair(word))


def _second_of_pair(word: jax.Array) -> jax.Array:
    return word + (word << 16)


def keep(lines: jax.Array, places: jax.Array, least: np.uint32) -> jax.Array:
    """Returns whether elements are kept, as bool.

    Args:
        lines: `line_words`.
        places: `place_words`, of a shape that is broadcast with that of `lines`.
        least: smallest value that is kept, see `threshold`.
    """
    return lines * places >= least


def products_of_parts(lines: jax.Array, parts: Sequence[jax.Array], in_pairs: bool) -> list[jax.Array]:
    """Returns the products that `keep` compares, for `PAIR` places at a time.

    Args:
        lines: `line_words`.
        parts: `place_words` of consecutive places, `PAIR` in each part.
        in_pairs: whether a shift and a sum replace every second product, and every second part is not read.
            The first place has to be a multiple of 2 * `PAIR`.
    """
    products: list[jax.Array] = []
    for number, places in enumerate(parts):
        is_second = in_pairs and number % 2
        products.append(_second_of_pair(products[-1]) if is_second else lines * places)
    return products


def keep_by_parts(
    lines: jax.Array, places: jax.Array, axis: int, least: np.uint32, in_pairs: bool
) -> jax.Array:
    """Returns `keep` by `products_of_parts`.

    Args:
        lines: `line_words`, of size 1 or `PAIR` on `axis`.
        places: `place_words` of consecutive places on `axis`, whose number is a multiple of `PAIR`.
        axis: the axis of places, of the two.
        least: as in `keep`.
        in_pairs: as in `products_of_parts`, for devices without a fast product of integers.
    """
    starts = range(0, places.shape[axis], PAIR)
    parts = [jax.lax.slice_in_dim(places, start, start + PAIR, axis=axis) for start in starts]
    return jnp.concatenate(products_of_parts(lines, parts, in_pairs), axis) >= least


def threshold(rate: float) -> np.uint32:
    """Returns the smallest product that is kept."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float, ids: jax.Array | None = None) -> jax.Array:
    """Returns a Bernoulli(1 - rate) mask.

    Args:
        key: a typed PRNG key or its data, uint32 [2].
        shape: [rows, ...]; there must be fewer than 2**32 - 1 rows and at most 2**32 lines per row.
        rate: probability of False, exact to 2**-31.
        ids: uint32 [rows], positions of the rows in the whole batch: 0, 1, 2, ... if None.

    Returns:
        bool array of `shape`.
    """
    *outer, size = shape if len(shape) > 1 else (*shape, 1)
    by_row = (shape[0], *[1] * len(outer))
    first, second = (words.reshape(by_row) for words in row_words(key, shape[0], ids))
    line, stride = jnp.zeros((1, *outer[1:], 1), jnp.uint32), 1
    for axis in range(len(outer) - 1, 0, -1):
        line += jax.lax.broadcasted_iota(jnp.uint32, line.shape, axis) * np.uint32(stride)
        stride *= shape[axis]
    of_places = row_words(key, 1, _NO_ROW)
    words = line_words(line, first, second), place_words(jnp.arange(size, dtype=jnp.uint32), *of_places)
    # Fused with the product, they would be computed again for every element.
    lines, places = jax.lax.optimization_barrier(words)
    return keep(lines, places, threshold(rate)).reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _dropout(x: jax.Array, words: jax.Array, ids: jax.Array | None, rate: float) -> jax.Array:
    kept = keep_mask(words, x.shape, rate, ids)
    # In float32, as the kernels have it: rounded to bfloat16, the factor would change the mean by up to .3%.
    scaled = (x.astype(jnp.float32) * jnp.float32(1 / (1 - rate))).astype(x.dtype)
    return jnp.where(kept, scaled, jnp.zeros((), x.dtype))


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
