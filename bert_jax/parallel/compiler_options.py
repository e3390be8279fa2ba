"""How XLA compiles: its options by platform and mesh, each with the reason for it, and the cache of programs.

An option is here where the compiled program is better with it, on TPU by `bert-jax estimate`, or where its
makers say so and no such hardware was at hand, which is said beside it.
"""

from __future__ import annotations

import os

import jax
from jax.sharding import Mesh


def for_mesh(mesh: Mesh) -> dict[str, str | bool]:
    """Options of `jax.jit(compiler_options=...)` for programs on this mesh; none for most."""
    return options(mesh.devices.flat[0].platform, dict(mesh.shape))


def options(platform: str, shape: dict[str, int]) -> dict[str, str | bool]:
    """The same, by the platform's name and the sizes of the mesh's axes.

    Tried and left out, because the program stays the same (libtpu 0.0.42): on several slices
    `xla_tpu_enable_data_parallel_all_reduce_opt` and `xla_tpu_data_parallel_opt_different_sized_ops`, whose
    all-reduces go between slices beside the computation without them; on one slice the async collective
    fusion of all-reduces, which are combined at the end of the step, where nothing is left to compute. And
    `xla_tpu_scoped_vmem_limit_kib`, of which four times the default makes the step 2% longer.
    """
    chosen: dict[str, str | bool] = {}
    if platform == "tpu" and shape["fsdp"] > 1:
        # Products with a sharded kernel are otherwise split into a chain of exchanges with neighbours, which
        # are too small for BERT's kernels: at fsdp=16 two layers of Base take four times as long a step.
        chosen["xla_jf_spmd_threshold_for_windowed_einsum_mib"] = "1000000"
    if platform == "gpu" and shape["data"] * shape["fsdp"] * shape["tensor"] > 1:
        # All-reduces run beside the backward pass (NVIDIA's advice for JAX; not measured here).
        chosen["xla_gpu_enable_latency_hiding_scheduler"] = True
    return chosen


def enable_compilation_cache(directory: str | None = None) -> None:
    """Keeps compiled programs on disk, so that a run that is started again does not compile again.

    Args:
        directory: where; "" for no cache, None for JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.
    """
    if directory is None:
        if jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
            return
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        directory = os.path.join(base, "bert_jax", "xla")
    jax.config.update("jax_compilation_cache_dir", directory or None)
