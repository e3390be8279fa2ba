"""TPUs and GPUs that a step can be estimated for: data sheets, and descriptions of devices to compile for."""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

from etils import epy

from bert_jax.errors import UserError, check_installed, install_hint
from bert_jax.io.wording import first_line
from bert_jax.parallel import host
from bert_jax.training import flops

with epy.lazy_imports():
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    from jax.experimental import topologies

# Without these variables libtpu looks for the chips of a Cloud TPU machine and queries its metadata server.
# They are read when jax is imported and when libtpu is loaded.
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_SCHEDULE_OPTIONS = (
    "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=packed-bundles-post-ra"
)
_GIB = 2.0**30

# On a GPU, XLA chooses between cuBLAS and Triton by timing, which is not possible here. With this option,
# matmuls use cuBLAS, as most do on a GPU. Without it, all become Triton kernels with untuned tiles.
GPU_COMPILER_OPTIONS = {"xla_gpu_enable_triton_gemm": False}
# The versions assumed for the machine with the GPU.
_CUDNN, _CUDA = (9, 10, 0), (12, 8, 0)
_GPUS_PER_HOST = 8


@dataclasses.dataclass(frozen=True)
class Chip:
    """One TPU chip, and the device or devices that jax sees in it.

    Memory, peak, bandwidths and torus are from the specification tables at
    https://docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, read in November 2026. The one-way rate of
    a link is the ICI bandwidth per chip, which the tables count in both directions, divided by twice the
    number of ports (v4: 50 GB/s in Jouppi et al. 2023, arXiv 2304.01433). The DCN rate is a pod's rate
    divided by its chips; v4's page gives none, so v5p's is used. At the clock rate, the matrix units reach
    the peak; Jouppi et al. also give v4's rate. Two values are assumptions, not published: TPU7x has six
    ports, as v5p has, and as many multiplications per core and cycle as v6e.
    """

    name: str
    dimensions: int  # of the torus
    largest: int  # chips in a slice
    hbm_bytes: float  # per device
    peak_flops: float  # per device: bfloat16 FLOP/s, and float32 at default precision
    hbm_bandwidth: float  # bytes per second, per device
    link_bandwidth: float  # bytes per second along one ICI link, one way; a chip has two per dimension
    dcn_bandwidth: float  # bytes per second to other slices, per device
    clock: float  # cycles per second
    wraps_at: int  # shortest side of a slice along which the torus is closed
    cores: int  # cores that form one device
    one_host: tuple[str, ...]  # shapes that fit a single host and are smaller than the usual 2x2
    devices: int = 1
    assumed: str = ""  # values that no data sheet gives


def _peak(name: str) -> float:
    return flops.PEAKS[f"TPU {name}"].bfloat16


_ASSUMED = "a clock of 2.2 GHz and 100 GB/s per ICI link"  # of TPU7x

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", 3, 4096, 32 * _GIB, _peak("v4"), 1228e9, 50e9, 6.25e9, 1.05e9, 4, 2, ()),
        Chip("v5e", 2, 256, 16 * _GIB, _peak("v5e"), 819e9, 50e9, 3.125e9, 1.5e9, 16, 1, ("1x1",)),
        Chip("v5p", 3, 6144, 95 * _GIB, _peak("v5p"), 2765e9, 100e9, 6.25e9, 1.75e9, 4, 2, ()),
        Chip("v6e", 2, 256, 32 * _GIB, _peak("v6e"), 1638e9, 100e9, 12.5e9, 1.75e9, 16, 1, ("1x1",)),
        Chip("tpu7x", 3, 9216, 96 * _GIB, 1153.5e12, 3690e9, 100e9, 6.25e9, 2.2e9, 4, 1, (), 2, _ASSUMED),
    )
}


@dataclasses.dataclass(frozen=True)
class Slices:
    """One or more TPU slices of the same shape."""

    chip: Chip
    shape: tuple[int, ...]
    count: int = 1

    @property
    def chips(self) -> int:
        """Returns the number of chips in all slices."""
        return math.prod(self.shape) * self.count

    @property
    def size(self) -> int:
        """Returns the number of devices in all slices."""
        return self.chips * self.chip.devices

    @property
    def text(self) -> str:
        """Returns the shape of a slice as --topology names it, such as `v5e:4x4`."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def description(self) -> dict[str, object]:
        """Returns the slices as they are described in an estimate."""
        described = {"name": self.text, "slices": self.count, "chips": self.chips}
        return described | ({"devices": self.size} if self.chip.devices > 1 else {})

    @staticmethod
    def prepare(schedules: str = "") -> None:
        """Sets the environment of this process; has to run before anything imports jax.

        The compiler writes the schedules of operations into the folder `schedules`, if it is not "".
        UserError if libtpu is not installed.
        """
        check_installed("libtpu", "estimate", "estimate for TPUs")
        options = {"LIBTPU_INIT_ARGS": _SCHEDULE_OPTIONS.format(schedules)} if schedules else {}
        os.environ.update(_ENVIRONMENT | options)

    @staticmethod
    def versions() -> dict[str, str]:
        """Returns the versions that an estimate depends on: another compiler makes another program."""
        return {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}

    def devices(self) -> list[Any]:
        """Returns devices to compile for, which cannot run programs; UserError for an unknown shape."""
        options: dict[str, Any] = {}
        if self.chip.cores > 1:  # one device, which is jax's default on such machines
            options["chip_config_name"] = "megacore"
        if self.count > 1:
            options["num_slices"] = self.count
        if "x".join(map(str, self.shape)) in self.chip.one_host:
            options["chips_per_host_bounds"] = (*self.shape, 1)
        try:
            described = topologies.get_topology_desc(platform="tpu", topology_name=self.text, **options)
        except Exception as error:  # jax passes on any error of libtpu
            raise UserError(
                f"--topology={self.text}: libtpu has no such slice ({first_line(error)})"
            ) from error
        assert len(described.devices) == self.size
        return described.devices


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One GPU as jax sees it.

    `kind`, memory, multiprocessors, clock, cache and shared memory are the values that the driver reports, as
    listed by openxla/xla in xla/backends/gpu/target_config/specs; the compiler's choices depend on them. The
    memory bandwidth is from the data sheet; the peak FLOP/s of matmuls is in `training/flops.py`.
    """

    name: str
    kind: str
    capability: tuple[int, int]
    hbm_bytes: int
    hbm_bandwidth: float  # bytes per second
    multiprocessors: int
    float32_lanes: int  # per multiprocessor
    clock: float  # cycles per second
    l2_bytes: int
    shared_bytes: int  # per multiprocessor

    def target_config(self) -> str:
        """Returns the text of the GpuTargetConfigProto that describes the GPU to XLA's compiler."""
        major, minor = self.capability
        # From Hopper on, XLA compiles for exactly this architecture, not for its successors too.
        extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        versions = (
            f"{name} {{ major: {parts[0]} minor: {parts[1]} patch: {parts[2]} }}"
            for name, parts in (("dnn_version_info", _CUDNN), ("runtime_version", _CUDA))
        )
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  threads_per_core_limit: 2048
  core_count: {self.multiprocessors}
  fpus_per_core: {self.float32_lanes}
  shared_memory_per_block: {48 * 2**10}
  shared_memory_per_core: {self.shared_bytes}
  shared_memory_per_block_optin: {self.shared_bytes - 2**10}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {int(self.hbm_bandwidth)}
  device_memory_size: {self.hbm_bytes}
  l2_cache_size: {self.l2_bytes}
  clock_rate_ghz: {self.clock / 1e9}
  name: "{self.kind}"
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {extension} }}
}}
platform_name: "CUDA"
{" ".join(versions)}
device_description_str: "{self.kind}"
"""


_MIB, _KIB = 2**20, 2**10
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", "NVIDIA A100-SXM4-80GB", (8, 0), 85_100_068_864, 2.039e12,
            108, 64, 1.41e9, 40 * _MIB, 164 * _KIB),
        Gpu("h100", "NVIDIA H100 80GB HBM3", (9, 0), 84_942_979_072, 3.352e12,
            132, 128, 1.98e9, 50 * _MIB, 228 * _KIB),
        Gpu("h200", "NVIDIA H200 141GB HBM3e", (9, 0), 151_397_597_184, 4.8e12,
            132, 128, 1.98e9, 50 * _MIB, 228 * _KIB),
    )
}  # fmt: skip


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

    @staticmethod
    def prepare(schedules: str = "") -> None:
        """Makes the GPU compiler available to jax in this process; has to run before anything imports jax.

        UserError if the compiler is not installed, or if its version differs from jax's. It writes no
        schedules.
        """
        plugin, jax = _gpu_plugin(), importlib.metadata.version("jaxlib")
        if not plugin or importlib.metadata.version(plugin) != jax:
            raise UserError(
                f"estimate for GPUs needs jax-cuda12-plugin=={jax}; {install_hint('estimate-gpu')}"
            )
        # With these variables, jax looks neither for a GPU nor for CUDA's libraries.
        os.environ.update({"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"})

    @staticmethod
    def versions() -> dict[str, str]:
        """Returns the versions that an estimate depends on: another compiler makes another program."""
        return {name: importlib.metadata.version(name) for name in ("jax", _gpu_plugin())}

    def devices(self) -> list[Any]:
        """Returns devices to compile for; they cannot run programs."""
        try:
            cudnn.check_cudnn_version()
        except RuntimeError:
            # jax would use the cuDNN version of this machine, but the version on the GPU machine matters.
            major, minor, patch = _CUDNN
            cudnn.check_cudnn_version = lambda: 10_000 * major + 100 * minor + patch
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=self.chip.target_config(),
            topology=f"1x{self.count}x{self.per_host}",
        )
        return described.devices


def _gpu_plugin() -> str:
    """Returns the package of jax's compiler for GPUs, "" if none is installed."""
    plugins = (name.replace("_", "-") for name in host.GPU_PLUGINS if importlib.util.find_spec(name))
    return next(plugins, "")


def _sides(name: str, count: str) -> tuple[str, str]:
    """Returns the chip and the sides of an accelerator type of Google Cloud, such as v5litepod-16."""
    name = {"v5litepod": "v5e"}.get(name, name)
    if name not in CHIPS or not count.isdecimal():
        return name, ""
    # v4, v5p and tpu7x count cores. Slices are as near to a cube as they can be, longer sides last.
    chip = CHIPS[name]
    chips, dimensions = int(count) // (chip.cores * chip.devices), chip.dimensions
    if dimensions == 3 and chips % 64 == 0 and 0 < chips <= chip.largest:  # made of cubes of 4x4x4
        cubes = range(1, chips // 64 + 1)
        shapes = [(a, b, len(cubes) // a // b) for a in cubes for b in cubes if len(cubes) % (a * b) == 0]
        return name, "x".join(str(4 * side) for side in min(shapes, key=lambda shape: (sum(shape), shape)))
    powers = [(chips.bit_length() - 1 + place) // dimensions for place in range(dimensions)]
    sides = [2**power for power in powers] if chips != 4 else [2, 2, 1][:dimensions]
    return name, "x".join(map(str, sides)) if math.prod(sides) == chips else ""


def parse_topology(text: str, slices: int = 1) -> Slices | Hosts:
    """Returns the slices or hosts that a text such as `v5e:16x16`, `v5litepod-16` or `h100:8` names."""
    name, colon, sides = text.partition(":")
    if not colon:
        name, sides = _sides(*text.split("-")) if text.count("-") == 1 else (name, "")
    chip, gpu = CHIPS.get(name), GPUS.get(name)
    if gpu is not None and slices == 1:
        number = int(sides) if re.fullmatch(r"[1-9]\d{0,4}", sides) else 0
        per_host = min(number, _GPUS_PER_HOST)
        if number and number % per_host == 0:
            return Hosts(gpu, number // per_host, per_host)
    shape = tuple(map(int, sides.split("x"))) if re.fullmatch(r"\d+(x\d+)*", sides) else ()
    # The first two sides are even, because a host has 2x2 chips.
    if (
        chip is None
        or len(shape) != chip.dimensions
        or not 0 < math.prod(shape) <= chip.largest
        or (sides not in chip.one_host and any(side % 2 for side in shape[:2]))
    ):
        raise UserError(
            f"--topology={text}: expected a TPU ({', '.join(CHIPS)}) and the sides of a slice, such as "
            f"v5e:4x4, or a GPU ({', '.join(GPUS)}) and a number, such as h100:8"
        )
    return Slices(chip, shape, slices)
