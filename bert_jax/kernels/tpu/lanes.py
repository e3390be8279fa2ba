"""Arrays inside the Pallas kernels for TPU that are the same in all lanes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels.dispatch import LANES


def in_rows(x: jax.Array) -> jax.Array:
    """Returns x [1, n], integers of 32 bits, as [n, 128], the same in each lane.

    In [1, n] they fill the registers, and what is computed of them takes the fewest operations.
    """
    return jnp.broadcast_to(x.astype(jnp.int32), (LANES, x.shape[1])).T.astype(x.dtype)


def widened(x: jax.Array, columns: int) -> jax.Array:
    """Returns x [n, 128] as [n, columns], repeated; `columns` is a multiple of 128."""
    return jnp.concatenate([x] * (columns // LANES), axis=1)
