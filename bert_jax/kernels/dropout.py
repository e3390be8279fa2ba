"""Dropout whose mask is hashed from the element's index: no mask is stored, and XLA fuses it into its
neighbours.

Drawing the bits with threefry costs 14 to 50% of a train step. Here each element costs two integer products
inside the fusion that uses it, forward and again backward, and a mask depends on the key and the element's
global index alone, so it is the same on every mesh.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

# Multipliers of an integer hash with low bias, found by search by C. Wellons ("hash-prospector").
_M1 = np.uint32(0x21F0AAAD)
_M2 = np.uint32(0x735A2D97)


def _mix(x: jax.Array) -> jax.Array:
    x = (x ^ (x >> 16)) * _M1
    x = (x ^ (x >> 15)) * _M2
    return x ^ (x >> 15)


def row_words(key: jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Two uint32 [rows] that a row's mask is hashed from, so that the index inside a row stays in 32 bits
    however large the batch is."""
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    words = words.reshape(-1)[:2].astype(jnp.uint32)
    row = jnp.arange(rows, dtype=jnp.uint32)
    return _mix(row ^ words[0]), _mix((row + np.uint32(0x9E3779B9)) ^ words[1])


def kernel_words(key: jax.Array | None, rows: int) -> jax.Array:
    """`row_words` as Pallas kernels take them, int32 [rows, 2]; zeros without a key."""
    if key is None:
        return jnp.zeros((rows, 2), jnp.int32)
    return jax.lax.bitcast_convert_type(jnp.stack(row_words(key, rows), axis=1), jnp.int32)


def keep(index: jax.Array, first: jax.Array, second: jax.Array, least: np.uint32) -> jax.Array:
    """bool of uint32 indices inside a row, from the row's two words: whether the hash is at least `least`."""
    x = index ^ first
    x = (x ^ (x >> 16)) * _M1
    x = ((x ^ (x >> 15)) + second) * _M2
    x ^= x >> 15
    return x >= least


def threshold(rate: float) -> np.uint32:
    """What the hash of an element that is kept is not below."""
    return np.uint32(min(round(rate * 2**32), 2**32 - 1))


def keep_mask(key: jax.Array, shape: tuple[int, ...], rate: float) -> jax.Array:
    """Bernoulli(1 - rate) mask.

    Args:
      key: a typed PRNG key or uint32[2] words.
      shape: [rows, ...]; the elements of one row must number less than 2**32, the rows likewise.
      rate: probability of False, exact to 2**-32.

    Returns:
      bool array of `shape`.
    """
    by_row = (shape[0],) + (1,) * (len(shape) - 1)
    first, second = (words.reshape(by_row) for words in row_words(key, shape[0]))
    index = jnp.zeros((1, *shape[1:]), jnp.uint32)
    stride = 1
    for axis in range(len(shape) - 1, 0, -1):
        index += jax.lax.broadcasted_iota(jnp.uint32, (1, *shape[1:]), axis) * np.uint32(stride)
        stride *= shape[axis]
    return keep(index, first, second, threshold(rate))


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _dropout(x: jax.Array, words: jax.Array, rate: float) -> jax.Array:
    return jnp.where(
        keep_mask(words, x.shape, rate), x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros((), x.dtype)
    )


def _dropout_fwd(x, words, rate):
    return _dropout(x, words, rate), words


def _dropout_bwd(rate, words, g):
    return _dropout(g, words, rate), np.zeros(words.shape, jax.dtypes.float0)


_dropout.defvjp(_dropout_fwd, _dropout_bwd)


def dropout(x: jax.Array, key: jax.Array | None, rate: float) -> jax.Array:
    """Zeroes each element of x with probability `rate` and scales the others by 1/(1 - rate).

    Args:
      x: [rows, ...], any float dtype.
      key: a typed PRNG key; None turns dropout off.
      rate: in [0, 1).
    """
    if key is None or rate == 0:
        return x
    return _dropout(x, jax.random.key_data(key).reshape(-1)[:2], rate)
