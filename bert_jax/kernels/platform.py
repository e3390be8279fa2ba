"""Which platform a program is being traced for, and kernels on its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax


def target_platform() -> str:
    """cpu, gpu or tpu: of the mesh in context, whose devices need not be attached to this machine, else of
    the default backend."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


Axes = tuple[str | None, ...]


def on_each_device(kernel: Callable, in_axes: Sequence[Axes], out_axes: Axes) -> Callable:
    """A Pallas kernel is opaque to the partitioner: each device runs it on its own part.

    Args:
      kernel: a function of arrays.
      in_axes, out_axes: the logical axes of each array, and of what the kernel returns.
    """
    *specs, out = map(nn.logical_to_mesh_axes, (*in_axes, out_axes))
    if out is None or jax.sharding.get_abstract_mesh().empty:
        return kernel
    return jax.shard_map(kernel, in_specs=tuple(specs), out_specs=out, check_vma=False)
