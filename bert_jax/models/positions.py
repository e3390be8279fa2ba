"""Position encodings: how an encoder represents the order of its tokens.

`position=disentangled` is in `encoder.RelativeTable` and in the layers' attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.kernels import attention
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import layer_slices

Angles = dict[float, attention.Angles]  # by theta


class Table(NamedTuple):
    """Name, shape, logical axis names and initial value (None: random) of a parameter of the embeddings."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    start: float | None = None


def table(config: EncoderConfig) -> Table | None:
    """Returns the parameter that the function in `EMBED` uses."""
    width = config.embedding_width
    return {
        "learned": Table(
            "position_embeddings", (config.max_position_embeddings, width), ("position", "embed")
        ),
        "scaled_sinusoid": Table("position_scale", (1,), ("norm",), width**-0.5),
    }.get(config.position)


def _learned(config, x, position_ids, table):
    """Adds a table (BERT). The first token uses row `position_offset`."""
    if config.position_offset:
        position_ids = position_ids + config.position_offset
    return x + jnp.take(table, position_ids, axis=0, mode="clip")


def _sinusoid(config, x, position_ids, table):
    """Adds sines in even and cosines in odd columns; wavelengths 2 pi to 20,000 pi (Vaswani et al. 2017)."""
    return x + _waves(config, position_ids)


def _scaled_sinusoid(config, x, position_ids, table):
    """Adds the same times one learned scalar, initially 1 / sqrt(E) (Hua et al. 2022)."""
    return x + table * _waves(config, position_ids)


def _waves(config, position_ids):
    width = config.embedding_width
    angles = _angles(position_ids, width, 10_000.0)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*position_ids.shape, width)


# Functions (config, x [B, L, E], positions int32 [B, L], parameter) -> x plus the embeddings of positions.
# Other position encodings do not change the embeddings.
EMBED: dict[str, Callable[..., jax.Array]] = {
    "learned": _learned,
    "sinusoid": _sinusoid,
    "scaled_sinusoid": _scaled_sinusoid,
}


def rotary_angles(config: EncoderConfig, position_ids: jax.Array | np.ndarray) -> Angles:
    """Returns the angles of queries and keys for all layers, which grow with the position (Su et al. 2021).

    The plane of coordinates i and i + D/2 of a head is rotated by position * theta^(-2i/D).
    """
    thetas = {each.theta for each in layer_slices(config)}
    each = {theta: _angles(position_ids, config.head_dim, theta) for theta in sorted(thetas)}
    return {theta: (jnp.cos(x)[:, :, None], jnp.sin(x)[:, :, None]) for theta, x in each.items()}


def _angles(position_ids, size: int, theta: float) -> jax.Array:
    """Returns float32 [..., size/2]: position * theta^(-2i/size)."""
    frequencies = np.float32(float(theta) ** (-np.arange(0, size, 2) / size))
    return position_ids[..., None].astype(jnp.float32) * frequencies


def alibi_slopes(heads: int) -> np.ndarray:
    """Returns the decrease of each head's logits per token of distance, float32 [N] (Press et al. 2022).

    For n heads they are 2^(-8i/n) for i = 1 ... n if n is a power of two. Otherwise they are the slopes for
    the largest power of two below n, followed by every other slope for twice that power.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    slopes += [2 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]
    return np.asarray(slopes, np.float32)
