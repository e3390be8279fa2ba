"""The memory of the devices, and the memory that a compiled program needs."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax

from bert_jax.parallel import collective

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class DoesNotFit:
    """The compiler's figures for a program that needs more memory than the chip has."""

    needed: float  # bytes of HBM
    available: float


def parse_out_of_memory(message: str) -> DoesNotFit | None:
    """Returns the figures in the TPU compiler's out-of-memory error; None for any other error."""
    found = re.search(r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm", message) or re.search(
        r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)", message
    )
    if found is None:
        return None
    used, used_unit, available, unit = found.groups()
    return DoesNotFit(float(used) * _UNITS[used_unit], float(available) * _UNITS[unit])


def bytes_on_device(tree: Any) -> float:
    """Returns the bytes that one device holds of arrays with shardings."""
    return float(
        sum(
            math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
            for leaf in jax.tree.leaves(tree)
        )
    )


def program_bytes(analysis: Any, platform: str) -> int:
    """Returns the bytes on each device while a program runs. Donated buffers are counted once.

    `analysis` is the result of `jax.stages.Compiled.memory_analysis`.
    """
    if platform == "tpu":
        # Temporary buffers share memory: a program can run although their sum exceeds the chip's memory.
        return analysis.peak_memory_in_bytes + analysis.generated_code_size_in_bytes
    return (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
        + analysis.temp_size_in_bytes
        + analysis.generated_code_size_in_bytes
    )


def available(mesh: jax.sharding.Mesh) -> float | None:
    """Returns the free bytes of the device with the fewest in a mesh: its limit minus its arrays.

    It is None if a device reports no limit, like CPUs. Every process of a run has to call it, and gets the
    same value.
    """
    least = math.inf
    for device in mesh.local_devices:
        stats = device.memory_stats() or {}
        if limit := stats.get("bytes_limit"):
            least = min(least, limit - stats.get("bytes_in_use", 0))
    least = min(map(float, collective.gather(str(least).encode())))
    return None if math.isinf(least) else least
