"""The device that a program is traced for, and kernels that run on each device of a mesh."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import flax.linen as nn
import jax

from bert_jax.kernels.dispatch import Target


def target_platform() -> str:
    """Returns "cpu", "gpu" or "tpu".

    It is the platform of the mesh in context, whose devices need not be attached to this machine. Without a
    mesh, it is the default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def shards(axis: str) -> int:
    """Returns the number of shards of a logical dimension on the mesh in context; 1 without a mesh."""
    axes = (nn.logical_to_mesh_axes((axis,)) or (None,))[0]
    mesh = jax.sharding.get_abstract_mesh()
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return math.prod(mesh.shape.get(name, 1) for name in axes)


def target() -> Target:
    """Returns the device that is being traced for; see `target_platform`."""
    platform = target_platform()
    if platform == "gpu" and jax.default_backend() == "gpu":
        return target_of(jax.local_devices()[0])
    return _of_platform(platform)


def _of_platform(platform):
    # Processes may have different processors, but need the same dtype.
    if platform == "cpu" and jax.process_count() == 1 and multiplies_bfloat16():
        return Target(platform, "bfloat16")
    return Target(platform)


def target_of(device: jax.Device) -> Target:
    """Returns the `Target` of a device, which need not be attached."""
    if device.platform == "gpu":
        return Target("gpu", str(getattr(device, "compute_capability", "")))
    return _of_platform(device.platform)


_PROCESSORS = Path("/proc/cpuinfo")
_UNITS = {"avx512_bf16", "amx_bf16"}  # the names in Linux


def processor_fields() -> dict[str, str]:
    """Returns Linux's fields for this machine's first processor, such as "model name"; {} elsewhere."""
    try:
        text = _PROCESSORS.read_text(encoding="utf-8").strip()
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def multiplies_bfloat16() -> bool:
    """Returns whether this machine's CPU has units for bfloat16 matmuls, and XLA uses them.

    It is False if XLA's flag `xla_cpu_max_isa` names an older instruction set, and on systems other than
    Linux.
    """
    limit = re.search(r"--xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    if limit and not limit[1].upper().startswith(("AMX", "AVX512_BF16")):
        return False
    return not _UNITS.isdisjoint(processor_fields().get("flags", "").split())


def interprets_kernels() -> bool:
    """Returns whether Pallas kernels are interpreted, which is slow: the program is for a CPU."""
    return target_platform() == "cpu"


Axes = tuple[str | None, ...]


def on_each_device(kernel: Callable, in_axes: Sequence[Axes], out_axes: Axes) -> Callable:
    """Returns the kernel wrapped so that each device of the mesh runs it on its own shard.

    This is needed because a Pallas kernel is opaque to the partitioner. Without a mesh, or where an enclosing
    `shard_map` has split the arrays, the kernel is returned unchanged. `in_axes` are the logical axes of each
    argument, and `out_axes` of the result.
    """
    *in_specs, out_specs = map(nn.logical_to_mesh_axes, (*in_axes, out_axes))
    mesh = jax.sharding.get_abstract_mesh()
    if out_specs is None or mesh.empty or mesh.are_all_axes_manual:
        return kernel
    return jax.shard_map(kernel, in_specs=tuple(in_specs), out_specs=out_specs, check_vma=False)
