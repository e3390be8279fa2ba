"""Places parameters for forward passes, with layers in the form that needs the fewest memory reads.

On a CPU, XLA copies the parameters of each layer from the stacked arrays before it computes the layer: 340 MB
for a batch of BERT-Base (benchmarks/NOTES.md). If a program takes each layer as a separate array and stacks
them itself, XLA replaces each slice of the stack by its array, unless the layers are a loop.

On any device, a program with bfloat16 matmuls casts the kernels of layers each time it is called. Kernels
that are cast once, when they are placed, give the same results.
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
class UnstackedLayers:
    """The slices of a parameter [layers, ...] along its first axis, each of shape [...]."""

    layers: tuple[jax.Array | np.ndarray, ...]


def config_for(config: EncoderConfig, mesh: jax.sharding.Mesh) -> EncoderConfig:
    """Returns an encoder's configuration for parameters from `place`, with unrolled layers if unstacked."""
    return config.replace(scan_unroll=0) if _suits(mesh) else config


def place(
    params: Mapping[str, Any], stacked: Collection[str], mesh: jax.sharding.Mesh, dtype: str
) -> dict[str, Any]:
    """Returns parameters by name on every device of a mesh, with layers in the fastest form.

    The first axis of the parameters in `stacked`, some of which may be missing, is the layer. Their kernels
    are cast to `dtype`, "float32" or "bfloat16", in which layers multiply.
    """
    found = dict(params)
    layered = found.keys() & stacked
    found |= {name: found[name].astype(dtype, copy=False) for name in layered if name.endswith("/kernel")}
    if _suits(mesh):
        found |= {name: UnstackedLayers(tuple(np.asarray(found[name]))) for name in layered}
    return jax.device_put(found, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def _suits(mesh: jax.sharding.Mesh) -> bool:
    return mesh.devices.flat[0].platform == "cpu" and jax.process_count() == 1


def restack(params: Any) -> Any:
    """Replaces each `UnstackedLayers` in a tree by an array [layers, ...], inside the compiled program."""
    return jax.tree.map(
        lambda x: jnp.stack(x.layers) if isinstance(x, UnstackedLayers) else x,
        params,
        is_leaf=lambda x: isinstance(x, UnstackedLayers),
    )
