"""Rotary positions: queries and keys that are turned by angles which grow with the position (Su et al. 2021).

Coordinates i and i + D/2 of a head form one plane. Cosines and sines of the angles are float32
[B, L, 1, D/2]: all heads use the same.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Angles = tuple[jax.Array, jax.Array]  # cosines and sines


def turn(x: jax.Array, angles: Angles) -> jax.Array:
    """Returns x [B, L, N, D], turned in float32, in its own dtype."""
    cosine, sine = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def lane_tables(angles: Angles, lanes: int) -> Angles:
    """Returns cosines and sines [B, L, lanes] for a kernel that turns `lanes` lanes, one or more heads.

    It adds each lane times its cosine and the lane of the other coordinate of the plane times its sine. The
    sines of the first half of a head are negated.
    """
    cosine, sine = (x[:, :, 0] for x in angles)
    heads = lanes // (2 * cosine.shape[-1])
    return jnp.tile(cosine, 2 * heads), jnp.tile(jnp.concatenate([-sine, sine], axis=-1), heads)
