"""XLA compiler options for each platform and mesh, and the cache of compiled programs.

An option is set only if it improves the compiled program (on TPU as measured by `bert-jax estimate`), or if
the vendor recommends it and the hardware to measure it was not available. A comment beside each option gives
the reason.
"""

from __future__ import annotations

import functools
import os
import warnings

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, SingleDeviceSharding

from bert_jax.io import caches
from bert_jax.parallel import host_tuning

# Commands such as `fill-mask` compile one small program, in less than the second from which JAX stores them.
_LEAST_SECONDS = 0.1
_LEAST_SECONDS_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def for_mesh(mesh: Mesh, recomputes: bool = False) -> dict[str, str | bool]:
    """Returns the `compiler_options` of `jax.jit` for programs on a mesh; empty for most meshes.

    Options that the installed version of the TPU compiler does not have are left out, with a warning.

    Args:
        mesh: the mesh.
        recomputes: as for `options`.
    """
    devices = list(mesh.devices.flat)
    device = next((one for one in devices if one.process_index == jax.process_index()), devices[0])
    chosen = options(device.platform, dict(mesh.shape), device.device_kind, recomputes)
    if device.platform != "tpu":
        return chosen
    return {name: value for name, value in chosen.items() if _is_known(name, value, device)}


_SMALL_VECTOR_MEMORY = ("TPU v2", "TPU v3", "TPU v4")  # 16 MiB; newer chips have eight times as much


@functools.cache
def _is_known(name: str, value: str | bool, device: jax.Device) -> bool:
    """Returns whether the compiler of a device has an option."""
    x = jax.ShapeDtypeStruct((), jnp.float32, sharding=SingleDeviceSharding(device))
    try:
        jax.jit(jnp.negative, compiler_options={name: value}).lower(x).compile()
    except jax.errors.JaxRuntimeError as error:
        if name not in str(error):
            raise
        warnings.warn(f"the compiler has no option {name}; a step may take longer", stacklevel=1)
        return False
    return True


def options(
    platform: str, shape: dict[str, int], kind: str = "", recomputes: bool = False
) -> dict[str, str | bool]:
    """Returns the compiler options for a platform and a mesh shape.

    These options were tried on libtpu 0.0.42 and are not used:

    - On several slices, `xla_tpu_enable_data_parallel_all_reduce_opt` and
      `xla_tpu_data_parallel_opt_different_sized_ops` do not change the program, because the all-reduces
      between slices overlap with the computation without them.
    - `xla_tpu_scoped_vmem_limit_kib` at four times its default makes the step 2% longer.

    Args:
        platform: the name of the platform, such as "tpu".
        shape: the size of each mesh axis.
        kind: the kind of the device, such as "TPU v4".
        recomputes: whether the program computes activations again to free their memory (`model.remat`).
    """
    chosen: dict[str, str | bool] = {}
    data_alone = shape["data"] > 1 and shape["fsdp"] * shape["tensor"] == 1
    # With these, the step of Base with 32 rows of 512 does not compile for v4: it needs 384 KiB more than the
    # 16 MiB of vector memory. The last two put what is computed again beside the all-reduces of other layers,
    # far before it is needed: six layers of 256 with remat=full keep .36 GiB, .11 without these options, and
    # .79 without remat.
    if platform == "tpu" and data_alone and kind not in _SMALL_VECTOR_MEMORY and not recomputes:
        # By default, the all-reduces of all gradients are combined at the end of the step, where no
        # computation is left to overlap with. With these, the gradients of a layer are added up while those
        # of the layer below are computed: 81 instead of 92 ms for Base with 32 rows of 512 on v5e:4x4.
        # Without the first, the second or the last two, nothing overlaps. With fsdp=4, a step would be 1%
        # longer.
        chosen["xla_jf_crs_combiner_threshold_in_bytes"] = "1000000"
        chosen["xla_enable_async_all_reduce"] = True
        chosen["xla_tpu_enable_async_collective_fusion"] = True
        chosen["xla_tpu_enable_async_collective_fusion_fuse_all_reduce"] = True
    if platform == "tpu" and shape["fsdp"] > 1:
        # By default, a matrix product with a sharded kernel becomes a chain of exchanges between neighbors.
        # BERT's kernels are too small for that: at fsdp=16, a step of two layers of Base takes four times as
        # long.
        chosen["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
    if platform == "gpu" and shape["data"] * shape["fsdp"] * shape["tensor"] > 1:
        # Overlaps all-reduces with the backward pass (recommended by NVIDIA for JAX; not measured here).
        chosen["xla_gpu_enable_latency_hiding_scheduler"] = True
    return chosen


def enable_compilation_cache(directory: str | None = None) -> None:
    """Enables JAX's compilation cache on disk, so that a restarted run does not compile again.

    It is called as a command begins to compute, and first checks that there are devices to do so; see
    `host_tuning.check_devices`.

    Args:
        directory: the cache directory; "" disables the cache, and None selects JAX_COMPILATION_CACHE_DIR or
            else ~/.cache/bert_jax/xla (under XDG_CACHE_HOME where that is set).
    """
    host_tuning.check_devices()
    if directory is None:
        given = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
        directory = given or caches.directory("xla")
    jax.config.update("jax_compilation_cache_dir", directory or None)
    if _LEAST_SECONDS_VARIABLE not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
