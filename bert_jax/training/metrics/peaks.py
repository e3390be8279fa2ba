"""Table of the peak FLOP/s of accelerators in dense matrix products, from the vendors' data sheets."""

from __future__ import annotations

import dataclasses
import functools
import re


@dataclasses.dataclass(frozen=True)
class Peak:
    """Peak FLOP/s of one JAX device, without sparsity.

    The two cores of a TPU v4 or v5p chip are one JAX device. Each of the two cores of a TPU v2 or v3 chip is
    a JAX device of its own, with half of the chip's peak (https://cloud.google.com/tpu/docs/v3).

    Attributes:
        bfloat16: the peak for bfloat16 products.
        float32: the peak for products of float32 operands in XLA's default precision.
    """

    bfloat16: float
    float32: float

    def of(self, dtype: str) -> float:
        """Returns the peak for a dtype, "bfloat16" or "float32"."""
        return getattr(self, dtype)


def _tpu(bfloat16: float) -> Peak:
    # TPUs multiply in bfloat16. With JAX's default precision, XLA rounds float32 operands to bfloat16 and
    # uses one pass, so both peaks are equal. (jax_default_matmul_precision=float32 uses six passes.)
    return Peak(bfloat16, bfloat16)


# On NVIDIA GPUs since Ampere, XLA computes float32 products in TF32 by default. Older GPUs support neither
# TF32 nor bfloat16 products, so XLA computes both in float32.
PEAKS = {
    "TPU v2": _tpu(45e12 / 2),
    "TPU v3": _tpu(123e12 / 2),
    "TPU v4": _tpu(275e12),
    "TPU v5 lite": _tpu(197e12),
    "TPU v5e": _tpu(197e12),
    "TPU v5": _tpu(459e12),
    "TPU v5p": _tpu(459e12),
    "TPU v6 lite": _tpu(918e12),
    "TPU v6e": _tpu(918e12),
    "T4": Peak(8.1e12, 8.1e12),
    "V100": Peak(15.7e12, 15.7e12),
    "A10": Peak(125e12, 62.5e12),
    "A10G": Peak(70e12, 35e12),
    "A100": Peak(312e12, 156e12),
    "L4": Peak(121e12, 60.5e12),
    "L40": Peak(181e12, 90.5e12),
    "L40S": Peak(362e12, 183e12),
    "H100": Peak(989e12, 494.5e12),
    "H100 PCIe": Peak(756e12, 378e12),
    "H100 NVL": Peak(835e12, 417.5e12),
    "H200": Peak(989e12, 494.5e12),
    "GH200": Peak(989e12, 494.5e12),
    "B200": Peak(2250e12, 1125e12),
}


@functools.cache
def find(device_kind: str) -> Peak | None:
    """Returns the peak for a `jax.Device.device_kind`, such as "NVIDIA A100-SXM4-40GB", or None."""
    for name in sorted(PEAKS, key=len, reverse=True):
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", device_kind, re.IGNORECASE):
            return PEAKS[name]
    return None
