"""Dropout whose mask is hashed from the element's index: no mask is stored, and XLA fuses it into its
neighbours.

Drawing the bits with threefry costs 14 to 50% of a train step. Here each element costs two integer products
inside the fusion that uses it, forward and again backward, and a mask depends on the key and the element's
global index alone, so it is the same on every mesh, and in however many parts a batch is computed.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

# Multipliers of an integer hash with low bias, found by search by C. Wellons ("hash-prospector").
_M1 = np.uint32(0x21F0AAAD)
_M2 = np.uint32(0x735A2D97)


_row_ids: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("row_ids", default=None)


@contextlib.contextmanager
def row_ids(ids: jax.Array) -> Iterator[None]:
    """What is traced inside draws the masks of these rows of a larger batch, instead of rows 0, 1, 2, ...

    Args:
      ids: integers [rows]. An array of k times as many rows has k consecutive ones for each of them, as
          the rows of a question with k choices.
    """
    token = _row_ids.set(jnp.asarray(ids, jnp.uint32))
    try:
        yield
    finally:
        _row_ids.reset(token)


def _ids_in_context(rows: int) -> jax.Array | None:
    """uint32 [rows], from `row_ids`; None outside of it, where they are 0, 1, 2, ..."""
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
    """Two uint32 [rows] that a row's mask is hashed from, so that the index inside a row stays in 32 bits
    however large the batch is. `ids` are the rows' places in the whole batch: 0, 1, 2, ... if not given.
    """
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    words = words.reshape(-1)[:2].astype(jnp.uint32)
    row = jnp.arange(rows, dtype=jnp.uint32) if ids is None else ids
    return _mix(row ^ words[0]), _mix((row + np.uint32(0x9E3779B9)) ^ words[1])


def kernel_words(key: jax.Array | None, rows: int) -> jax.Array:
    """`row_words` as Pallas kernels take them, int32 [rows, 2]; zeros without a key."""
    if key is None:
        return jnp.zeros((rows, 2), jnp.int32)
    return jax.lax.bitcast_convert_type(
        jnp.stack(row_words(key, rows, _ids_in_context(rows)), axis=1), jnp.int32
    )


def keep(index: jax.Array, first: jax.Array, second: jax.Array, least: np.uint32) -> jax.Array:
    """bool of uint32 indices inside a row, from the row's two words: whether the hash is at least `least`."""
    x = index ^ first
    x = (x ^ (x >> 16)) * _M1
    x = ((x ^ (x >> 15)) + second) * _M2
    x ^= x >> 15
    return x >= least


def threshold(rate: float) -> np.uint32:
    """Smallest hash value that is kept."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float, ids: jax.Array | None = None) -> jax.Array:
    """Bernoulli(1 - rate) mask.

    Args:
      key: a typed PRNG key or uint32[2] words.
      shape: [rows, ...]; the elements of one row must number less than 2**32, the rows likewise.
      rate: probability of False, exact to 2**-32.
      ids: uint32 [rows], the rows' places in the whole batch: 0, 1, 2, ... if not given.

    Returns:
      bool array of `shape`.
    """
    by_row = (shape[0],) + (1,) * (len(shape) - 1)
    first, second = (words.reshape(by_row) for words in row_words(key, shape[0], ids))
    index = jnp.zeros((1, *shape[1:]), jnp.uint32)
    stride = 1
    for axis in range(len(shape) - 1, 0, -1):
        index += jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis) * np.uint32(stride)
        stride *= shape[axis]
    return keep(index, first, second, threshold(rate))


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

    Which ones follows from the key, the row's place in the batch (see `row_ids`) and the place in the row.

    Args:
      x: [rows, ...], any float dtype.
      key: a typed PRNG key; None turns dropout off.
      rate: in [0, 1).
    """
    if key is None or rate == 0:
        return x
    # The context is read here and not in the backward pass, which may be traced outside of it.
    return _dropout(x, jax.random.key_data(key).reshape(-1)[:2], _ids_in_context(x.shape[0]), rate)
