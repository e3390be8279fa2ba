"""XLA compiler options for each chip and mesh, and the cache of compiled programs.

An option is set only on chips for which the vendor's compiler or published configurations support it, and
only if it improves the compiled program (on TPU as measured by `bert-jax estimate`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from bert_jax.io import files, scratch
from bert_jax.parallel import host

# By default JAX stores programs that compile for a second or longer. Those of `fill-mask` take less time.
_LEAST_SECONDS = 0.1
_LEAST_SECONDS_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_XLA_CACHES_VARIABLE = "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"
_REMOTE_CACHE = "xla_cache"  # next to the work directory, to be shared with other runs

# By default, the all-reduces of all gradients are combined at the end of the step, where no computation is
# left to overlap with. With a lower threshold, each layer has a separate all-reduce.
_PER_LAYER = {"xla_jf_crs_combiner_threshold_in_bytes": "1000000"}

# All-reduces that a loop over fused computation steps advances. On every other chip, libtpu 0.0.50 ends with
# FAILED_PRECONDITION: "not supported/recommended on platforms other than TPU v5e, and this might lead to ...
# incorrect results, hang, SDC". 81 instead of 92 ms for a step of Base with 32 rows of 512 on v5e:4x4;
# without any one of these options, nothing overlaps.
_CONTINUATION_FUSION = _PER_LAYER | {
    "xla_enable_async_all_reduce": True,
    "xla_tpu_enable_async_collective_fusion": True,
    "xla_tpu_enable_async_collective_fusion_fuse_all_reduce": True,
}

# All-reduces on the SparseCores, in parallel with computation. Google's MaxText sets these for Trillium
# (benchmarks/maxtext_trillium_model_configs.py, llama2-70b-4096-sc), Apple's AXLearn for every v6e
# (axlearn/common/compiler_options.py).
_SPARSE_CORES = _PER_LAYER | {
    "xla_tpu_enable_sparse_core_collective_offload_all_reduce": True,
    "xla_tpu_use_tc_device_shape_on_sc": True,
    "xla_sc_disable_megacore_partitioning": True,
    "xla_sc_enable_instruction_fusion": False,
}

# Kind of device -> options for meshes that split only the batch. No source supports such an option on v2 to
# v4 and v5p, where the chips wait for the all-reduces.
DATA_PARALLEL: Mapping[str, Mapping[str, str | bool]] = {
    "TPU v5 lite": _CONTINUATION_FUSION,
    "TPU v5e": _CONTINUATION_FUSION,
    "TPU v6 lite": _SPARSE_CORES,
    "TPU v6e": _SPARSE_CORES,
}


def for_mesh(mesh: Mesh, recomputes: bool = False) -> dict[str, str | bool]:
    """Returns the `compiler_options` of `jax.jit` for programs on a mesh; empty for most meshes.

    `recomputes` tells whether the program computes activations again to free their memory (`model.remat`).
    """
    devices = list(mesh.devices.flat)
    device = next((one for one in devices if one.process_index == jax.process_index()), devices[0])
    return options(device.platform, dict(mesh.shape), device.device_kind, recomputes)


def options(
    platform: str, shape: dict[str, int], kind: str = "", recomputes: bool = False
) -> dict[str, str | bool]:
    """Returns the options for a platform, the sizes of the mesh axes and a kind of device; see `for_mesh`."""
    chosen: dict[str, str | bool] = {}
    # With remat, the compiler would move recomputation far before its use, to overlap it with the all-reduces
    # of other layers. Six layers of 256 with remat=full keep .36 GiB with these options, .11 without them,
    # and .79 without remat. With fsdp=4, a step would be 1% longer.
    if platform == "tpu" and shape["data"] > 1 and shape["fsdp"] * shape["tensor"] == 1 and not recomputes:
        chosen.update(DATA_PARALLEL.get(kind, {}))
    if platform == "tpu" and shape["fsdp"] > 1:
        # By default, a matmul with a sharded kernel becomes a chain of exchanges between neighbors.
        # BERT's kernels are too small for that: at fsdp=16, a step of two layers of Base takes four times as
        # long. MaxText and AXLearn also set this option.
        chosen["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
    if platform == "gpu" and shape["data"] * shape["fsdp"] * shape["tensor"] > 1:
        # Overlaps all-reduces with the backward pass (recommended by NVIDIA for JAX; not measured here).
        chosen["xla_gpu_enable_latency_hiding_scheduler"] = True
    return chosen


def enable_compilation_cache(workdir: files.PathLike = "") -> None:
    """Enables JAX's cache of compiled programs, so that a restarted run does not compile again.

    Commands call it before they compute. It first checks that the devices exist; see `host.check_devices`.
    The cache is JAX_COMPILATION_CACHE_DIR; by default ~/.cache/bert_jax/xla, or, for the work directory of a
    run in a bucket, a folder of the bucket, which a new machine can also read.
    """
    host.check_devices()
    directory = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not directory and files.scheme(workdir) in ("gs", "s3"):
        directory = os.path.join(files.parent(workdir), _REMOTE_CACHE)
    directory = directory or scratch.cache_directory("xla")
    jax.config.update("jax_compilation_cache_dir", directory)
    if files.is_remote(directory) and _XLA_CACHES_VARIABLE not in os.environ:
        # JAX would make XLA also store its timings of GPU kernels there, but XLA cannot open a URL.
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    if _LEAST_SECONDS_VARIABLE not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
