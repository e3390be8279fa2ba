"""Position schemes by name: how an encoder represents the order of its tokens.

A scheme has no parameters; `tables` describes the parameters that the embeddings hold for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.kernels import attention
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import layer_slices

Angles = dict[float, attention.Angles]  # by theta


class Table(NamedTuple):
    """Shape and logical axis names of a parameter of the embeddings.

    `start` is its initial value; None for the random initialization of a table.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    start: float | None = None


class PositionScheme:
    """How positions change the embeddings and attention.

    This base class is the scheme without positions: its methods do not change embeddings or attention.
    """

    def __init__(self, config: EncoderConfig):
        self.config = config

    def tables(self) -> Mapping[str, Table]:
        """Returns the parameters that `embed` uses, by name."""
        return {}

    def embed(self, x: jax.Array, position_ids: jax.Array, tables: Mapping[str, jax.Array]) -> jax.Array:
        """Returns x [B, L, E] plus the embeddings of positions int32 [B, L]."""
        return x

    def angles(self, position_ids: jax.Array) -> Angles | None:
        """Returns the angles of queries and keys, computed once for all layers; None for no rotation."""
        return None

    def slopes(self) -> np.ndarray | None:
        """Returns the decrease of each head's logits per token of distance, float32 [N]; or None."""
        return None


class Learned(PositionScheme):
    """A table that is added to the embeddings (BERT). The first token uses row `position_offset`."""

    def tables(self):
        shape = self.config.max_position_embeddings, self.config.embedding_width
        return {"position_embeddings": Table(shape, ("position", "embed"))}

    def embed(self, x, position_ids, tables):
        if self.config.position_offset:
            position_ids = position_ids + self.config.position_offset
        return x + jnp.take(tables["position_embeddings"], position_ids, axis=0, mode="clip")


class Sinusoid(PositionScheme):
    """Sines in even and cosines in odd columns; wavelengths from 2 pi to 20,000 pi (Vaswani et al. 2017)."""

    def embed(self, x, position_ids, tables):
        return x + self._waves(position_ids)

    def _waves(self, position_ids):
        width = self.config.embedding_width
        angles = _angles(position_ids, width, 10_000.0)
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(*position_ids.shape, width)


class ScaledSinusoid(Sinusoid):
    """`Sinusoid` times one learned scalar, initially 1 / sqrt(E) (Hua et al. 2022)."""

    def tables(self):
        return {"position_scale": Table((1,), ("norm",), self.config.embedding_width**-0.5)}

    def embed(self, x, position_ids, tables):
        return x + tables["position_scale"] * self._waves(position_ids)


class Rotary(PositionScheme):
    """Rotates queries and keys by angles that grow with the position (Su et al. 2021).

    The plane of coordinates i and i + D/2 of a head is rotated by position * theta^(-2i/D).
    """

    def angles(self, position_ids):
        thetas = {each.theta for each in layer_slices(self.config)}
        each = {theta: _angles(position_ids, self.config.head_dim, theta) for theta in sorted(thetas)}
        return {theta: (jnp.cos(x)[:, :, None], jnp.sin(x)[:, :, None]) for theta, x in each.items()}


class Alibi(PositionScheme):
    """Subtracts the distance of two tokens, times a slope per head, from the logits (Press et al. 2022)."""

    def slopes(self):
        return np.float32(alibi_slopes(self.config.num_attention_heads))


def _angles(position_ids: jax.Array, size: int, theta: float) -> jax.Array:
    """Returns float32 [..., size/2]: position * theta^(-2i/size)."""
    frequencies = np.float32(float(theta) ** (-np.arange(0, size, 2) / size))
    return position_ids[..., None].astype(jnp.float32) * frequencies


def alibi_slopes(heads: int) -> list[float]:
    """Returns the slope of each head: 2^(-8i/n) for i = 1 ... n if n is a power of two.

    Otherwise they are the slopes for the largest power of two below n, followed by every other slope for
    twice that power.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * i / below) for i in range(1, below + 1)]
    return slopes + [2 ** (-4 * i / below) for i in range(1, 2 * (heads - below), 2)]


_SCHEMES: dict[str, type[PositionScheme]] = {
    "learned": Learned,
    "none": PositionScheme,
    "sinusoid": Sinusoid,
    "scaled_sinusoid": ScaledSinusoid,
    "rotary": Rotary,
    "alibi": Alibi,
    "disentangled": PositionScheme,  # implemented by `encoder.RelativeTable` and the layers' attention
}


def scheme(config: EncoderConfig) -> PositionScheme:
    """Returns the position scheme of a configuration."""
    return _SCHEMES[config.position](config)
