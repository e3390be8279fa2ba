"""Compile-only GPU devices on a machine without a GPU, from jax's CUDA plugin and topologies."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from etils import epy

from bert_jax.errors import UserError, install_hint
from bert_jax.estimate.chips.gpus import CUDNN, Hosts
from bert_jax.io import scratch
from bert_jax.parallel import host

with epy.lazy_imports():
    from jax._src.cudnn import fused_attention_stablehlo as cudnn
    from jax.experimental import topologies

# A real GPU chooses between cuBLAS and Triton by timing, which is not possible here. With this option
# products use cuBLAS, as most of them do on a GPU. Without it, all become Triton kernels with untuned tiles.
COMPILER_OPTIONS = {"xla_gpu_enable_triton_gemm": False}

# Messages that the plugin's libraries print once each on a machine without a driver.
_NOT_NEEDED = re.compile(r"cudart_stub\.cc.*Could not find cuda drivers|before absl::InitializeLog\(\)")


def prepare() -> None:
    """Makes the GPU compiler available to jax in this process; has to run before anything imports jax.

    Raises:
        UserError: the compiler is not installed, or its version differs from that of jax.
    """
    found = next((name for name in host.GPU_PLUGINS if importlib.util.find_spec(name)), None)
    jax = importlib.metadata.version("jax")
    wanted = f"pip install 'jax-cuda12-plugin=={jax}'"
    if found is None:
        raise UserError(
            "estimate for GPUs needs their compiler, jax-cuda12-plugin, which is not installed: "
            f"{wanted} (or {install_hint('estimate-gpu')}); neither a GPU nor CUDA is needed"
        )
    version = importlib.metadata.version(found.replace("_", "-"))
    if version != importlib.metadata.version("jaxlib"):
        raise UserError(f"{found} has version {version} and jax {jax}; they must be equal: {wanted}")
    os.environ["JAX_PLATFORMS"] = "cpu"  # keeps jax from looking for a GPU
    with _without_missing_drivers():
        importlib.import_module("jax.experimental.topologies")


@contextlib.contextmanager
def _without_missing_drivers() -> Iterator[None]:
    """Captures the standard error inside the block, and then prints it without lines of `_NOT_NEEDED`."""
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+", errors="replace", dir=scratch.system_directory()) as captured:
        before = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            captured.seek(0)
            for line in captured:
                if not _NOT_NEEDED.search(line):
                    print(line, end="", file=sys.stderr)


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
    with _without_missing_drivers():
        described = topologies.get_topology_desc(
            platform="cuda",
            target_config=hosts.chip.target_config(),
            topology=f"1x{hosts.count}x{hosts.per_host}",
        )
    return described.devices
