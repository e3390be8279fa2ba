"""NVIDIA GPUs that a step can be compiled for on a machine without one, from their public data sheets."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
import re
from typing import Any

from etils import epy

from bert_jax.errors import UserError, install_hint
from bert_jax.parallel import host

with epy.lazy_imports():
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    from jax.experimental import topologies

# A real GPU chooses between cuBLAS and Triton by timing, which is not possible here. With this option
# products use cuBLAS, as most of them do on a GPU. Without it, all become Triton kernels with untuned tiles.
COMPILER_OPTIONS = {"xla_gpu_enable_triton_gemm": False}

_PER_HOST = 8


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as jax sees it.

    `kind`, memory, multiprocessors, clock, cache and shared memory are the values that the driver reports, as
    listed by openxla/xla in xla/backends/gpu/target_config/specs; the compiler's choices depend on them. The
    memory bandwidth is from the data sheet; the peak FLOP/s of products is in `training/flops.py`.
    """

    name: str
    kind: str
    capability: tuple[int, int]
    hbm_bytes: float
    hbm_bandwidth: float  # bytes per second
    multiprocessors: int
    float32_lanes: int  # per multiprocessor
    clock: float  # cycles per second
    l2_bytes: int
    shared_bytes: int  # per multiprocessor
    shared_bytes_a_block: int

    def target_config(self) -> str:
        """Returns the text of the GpuTargetConfigProto that describes the GPU to XLA's compiler."""
        major, minor = self.capability
        # From Hopper on, XLA compiles for exactly this architecture, not for its successors too.
        extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        device = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "threads_per_core_limit": 2048,
            "core_count": self.multiprocessors,
            "fpus_per_core": self.float32_lanes,
            "shared_memory_per_block": 48 * 2**10,
            "shared_memory_per_core": self.shared_bytes,
            "shared_memory_per_block_optin": self.shared_bytes_a_block,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(self.hbm_bandwidth),
            "device_memory_size": int(self.hbm_bytes),
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock / 1e9,
            "name": f'"{self.kind}"',
        }
        capability = f"major: {major} minor: {minor} feature_extension: {extension}"
        versions = {
            name: f"major: {parts[0]} minor: {parts[1]} patch: {parts[2]}"
            for name, parts in (("dnn_version_info", CUDNN), ("runtime_version", _CUDA))
        }
        lines = [
            "gpu_device_info {",
            *(f"  {name}: {value}" for name, value in device.items()),
            f"  cuda_compute_capability {{ {capability} }}",
            "}",
            'platform_name: "CUDA"',
            *(f"{name} {{ {version} }}" for name, version in versions.items()),
            f'device_description_str: "{self.kind}"',
        ]
        return "\n".join(lines) + "\n"


# Versions that are assumed on the machine with the GPU.
CUDNN = (9, 10, 0)
_CUDA = (12, 8, 0)

GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", "NVIDIA A100-SXM4-80GB", (8, 0), 85_100_068_864, 2.039e12,
            108, 64, 1.41e9, 40 * 2**20, 164 * 2**10, 163 * 2**10),
        Gpu("h100", "NVIDIA H100 80GB HBM3", (9, 0), 84_942_979_072, 3.352e12,
            132, 128, 1.98e9, 50 * 2**20, 228 * 2**10, 227 * 2**10),
        Gpu("h200", "NVIDIA H200 141GB HBM3e", (9, 0), 151_397_597_184, 4.8e12,
            132, 128, 1.98e9, 50 * 2**20, 228 * 2**10, 227 * 2**10),
        Gpu("b200", "NVIDIA B200", (10, 0), 191_514_411_008, 7.672e12,
            148, 128, 1.965e9, 132_644_864, 228 * 2**10, 227 * 2**10),
    )
}  # fmt: skip

EXAMPLES = "h100:1, h100:8, h200:8, a100:8, b200:16"


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts with the same number of GPUs each."""

    chip: Gpu
    count: int
    per_host: int

    @property
    def chips(self) -> int:
        """Returns the number of GPUs on all hosts."""
        return self.count * self.per_host

    @property
    def text(self) -> str:
        """Returns the GPUs as --topology names them, such as `h100:16`."""
        return f"{self.chip.name}:{self.chips}"

    @property
    def description(self) -> dict[str, object]:
        """Returns the hosts as they are described in an estimate."""
        return {"name": self.text, "hosts": self.count, "chips": self.chips}


def parse(text: str) -> Hosts:
    """Returns the hosts for a text like `h100:16`, which is two hosts with eight GPUs each.

    Raises:
        UserError: the text is invalid; the message lists what is available.
    """
    name, _, number = text.partition(":")
    gpus = int(number) if re.fullmatch(r"[1-9]\d{0,4}", number) else 0
    if not gpus or (gpus > _PER_HOST and gpus % _PER_HOST):
        raise UserError(
            f"--topology={text}: expected {name}:N with 1 to {_PER_HOST} GPUs, or a multiple of {_PER_HOST}, "
            f"such as {EXAMPLES}"
        )
    per_host = min(gpus, _PER_HOST)
    return Hosts(GPUS[name], gpus // per_host, per_host)


def prepare() -> None:
    """Makes the GPU compiler available to jax in this process; has to run before anything imports jax.

    Raises:
        UserError: the compiler is not installed, or its version differs from jax's.
    """
    plugin = next((name for name in host.GPU_PLUGINS if importlib.util.find_spec(name)), None)
    jax = importlib.metadata.version("jaxlib")
    if plugin is None or importlib.metadata.version(plugin.replace("_", "-")) != jax:
        raise UserError(
            f"estimate for GPUs needs their compiler, in jax's version: pip install "
            f"'jax-cuda12-plugin=={jax}' (or {install_hint('estimate-gpu')}); no GPU is needed"
        )
    # jax looks neither for a GPU nor for CUDA's libraries.
    os.environ.update({"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"})


def versions() -> dict[str, str]:
    """Returns the versions that an estimate depends on: another compiler makes another program."""
    found = next(name for name in host.GPU_PLUGINS if importlib.util.find_spec(name))
    return {name: importlib.metadata.version(name) for name in ("jax", found.replace("_", "-"))}


def devices(hosts: Hosts) -> list[Any]:
    """Returns devices to compile for; they cannot run programs."""
    try:
        cudnn.check_cudnn_version()
    except RuntimeError:
        # jax asks the cuDNN library of this machine for its version, but that of the GPU machine matters.
        major, minor, patch = CUDNN
        cudnn.check_cudnn_version = lambda: 10_000 * major + 100 * minor + patch
    described = topologies.get_topology_desc(
        platform="cuda",
        target_config=hosts.chip.target_config(),
        topology=f"1x{hosts.count}x{hosts.per_host}",
    )
    return described.devices
