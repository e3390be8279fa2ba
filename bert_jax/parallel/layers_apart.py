"""Keeps the parameters of each layer in arrays of their own, for forward passes on CPUs.

On a CPU, XLA copies the parameters of each layer out of the stacked ones before it computes the layer: 340 MB
for a batch of BERT-Base (benchmarks/NOTES.md). If a program takes the layers as arrays of their own and
stacks them itself, XLA replaces each slice of the stack by its array, unless the layers are a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.config import EncoderConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Apart:
    """The slices of a parameter [layers, ...] along its first axis, each of shape [...]."""

    layers: tuple[jax.Array | np.ndarray, ...]


def suits(mesh: jax.sharding.Mesh) -> bool:
    """Returns whether forward passes on a mesh gain: on CPUs of this process alone."""
    return mesh.devices.flat[0].platform == "cpu" and jax.process_count() == 1


def config_for(config: EncoderConfig) -> EncoderConfig:
    """Returns the configuration of an encoder with these parameters, whose layers are not a loop."""
    return config.replace(scan_unroll=0)


def separate(params: Mapping[str, Any], stacked: Collection[str]) -> dict[str, Any]:
    """Returns parameters on the host with `Apart` in place of the stacked ones.

    Args:
        params: arrays by name. Arrays of JAX have to be on CPUs; they are not copied.
        stacked: the names of those whose first axis is that of layers; others may be among them.
    """
    return {name: Apart(tuple(np.asarray(x))) if name in stacked else x for name, x in params.items()}


def together(params: Any) -> Any:
    """Returns a tree with arrays [layers, ...] in place of each `Apart`; called in the compiled program."""
    return jax.tree.map(
        lambda x: jnp.stack(x.layers) if isinstance(x, Apart) else x,
        params,
        is_leaf=lambda x: isinstance(x, Apart),
    )
