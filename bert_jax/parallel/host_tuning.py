"""What has to be set before the process starts, or before it imports jax."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import types

# The host allocates and frees each step's activations anew. In 4 KiB pages their first touch takes a fifth of
# a CPU train step; with this glibc asks the kernel for huge pages. Read once, when a process starts.
_MALLOC = "glibc.malloc.hugetlb=1"


def use_huge_pages() -> None:
    """Starts this Python program again, in the same process, with huge pages for its heap. Linux only, and
    once.

    A GLIBC_TUNABLES in the environment, also an empty one, is left as it is and nothing is started again.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = _MALLOC
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_BACKENDS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # the last in Windows's Linux


def has_nvidia_gpu() -> bool:
    """Whether the operating system has an NVIDIA GPU, or its driver's tools."""
    return any(map(os.path.exists, _NVIDIA_DEVICES)) or shutil.which("nvidia-smi") is not None


_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")
_TPU_PCI_VENDOR = "0x1ae0"  # Google's: also of its network cards
_TPU_VARIABLES = (
    "CLOUD_TPU_TASK_ID",
    "JAX_FORCE_TPU_INIT",
    "TPU_ACCELERATOR_TYPE",
    "TPU_LIBRARY_PATH",
    "TPU_NAME",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
)


def may_have_tpu() -> bool:
    """Whether there is any sign of a TPU in this machine or its environment."""
    if any(map(glob.glob, _TPU_DEVICES)) or any(name in os.environ for name in _TPU_VARIABLES):
        return True
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError), open(path) as file:
            if file.read().strip() == _TPU_PCI_VENDOR:
                return True
    return False


def hide_libtpu() -> None:
    """Keeps jax from loading libtpu where there is no TPU; before anything imports jax.

    Estimates for TPUs need no more than the library. Loaded without a TPU it asks for one that is not there,
    and prints errors into every command. Where JAX_PLATFORMS asks for a TPU nothing is hidden.
    """
    if "jax" not in sys.modules and "tpu" not in os.environ.get("JAX_PLATFORMS", "") and not may_have_tpu():
        sys.modules.setdefault("libtpu", None)  # type: ignore[arg-type]  # to import it is an ImportError, as if it were not installed


def show_libtpu() -> None:
    """Undoes `hide_libtpu`, while jax has not been imported."""
    if "jax" not in sys.modules and sys.modules.get("libtpu", sys) is None:
        del sys.modules["libtpu"]


def hide_gpu_plugins() -> None:
    """Keeps jax from loading its CUDA plugin where there is no GPU; before anything imports jax.

    Estimates for GPUs need no more than the plugin. Loaded without a driver it prints a traceback and many
    lines into every command. Where JAX_PLATFORMS asks for a GPU they are wanted, and nothing is hidden.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    if "jax" in sys.modules or has_nvidia_gpu() or "cuda" in asked or "gpu" in asked:
        return
    for name in GPU_PLUGINS:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # to import it is an ImportError, as if it were not installed
    for name in _BACKENDS:
        nothing = types.ModuleType(name)
        setattr(nothing, "initialize", lambda: None)  # noqa: B010  # all that jax calls
        sys.modules.setdefault(name, nothing)


def show_gpu_plugins() -> None:
    """Undoes `hide_gpu_plugins`, while jax has not been imported."""
    if "jax" in sys.modules:
        return
    for name in (*GPU_PLUGINS, *_BACKENDS):
        module = sys.modules.get(name)
        if module is None or not hasattr(module, "__file__"):
            sys.modules.pop(name, None)
