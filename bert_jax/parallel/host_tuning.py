"""The cores of the host, and settings to make before the process starts, or before it imports jax."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import types
from pathlib import Path

from etils import epy

from bert_jax.errors import ClusterError, UserError, install_hint

with epy.lazy_imports():
    import jax

# On a CPU, every step allocates and frees its activations. With pages of 4 KiB, the page faults take a third
# of a train step; with the first setting glibc requests huge pages. The second one is needed to keep freed
# memory (`host_memory`): glibc can keep large blocks only in the heap of the main thread, and others than the
# main thread allocate them. glibc reads both once, when a process starts.
_MALLOC = "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"

_CGROUP = Path("/sys/fs/cgroup")
# Of the second and the first version: the files with the quota and the period, in microseconds.
_QUOTAS = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))


def usable_cores() -> float:
    """Returns the number of cores that this process may use, by its affinity and its container's quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    return min(cores, _quota() or cores)


def _quota() -> float | None:
    """Returns the number of cores that the quota of a container amounts to; None without a quota."""
    for names in _QUOTAS:
        with contextlib.suppress(OSError, ValueError):  # no cgroup of this kind, or "max"
            quota, period = map(int, " ".join((_CGROUP / name).read_text() for name in names).split())
            if quota > 0:  # -1 is no quota
                return quota / period
    return None


def restart_with_malloc_settings() -> None:
    """Restarts this Python program, in the same process, with huge pages and one heap for all threads.

    Does nothing on other systems than Linux, or if GLIBC_TUNABLES is set, even to "". The restarted program
    therefore does not restart again.
    """
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ:
        return
    os.environ["GLIBC_TUNABLES"] = _MALLOC
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_BACKENDS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # /dev/dxg is the one of WSL


def has_nvidia_gpu() -> bool:
    """Returns whether the machine has an NVIDIA GPU device file, or the nvidia-smi tool."""
    return any(map(os.path.exists, _NVIDIA_DEVICES)) or shutil.which("nvidia-smi") is not None


_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")
_TPU_PCI_VENDOR = "0x1ae0"  # Google, whose network cards have the same vendor id
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
    """Returns whether device files, PCI devices or environment variables indicate a TPU."""
    if any(map(glob.glob, _TPU_DEVICES)) or any(name in os.environ for name in _TPU_VARIABLES):
        return True
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        with contextlib.suppress(OSError), open(path) as file:
            if file.read().strip() == _TPU_PCI_VENDOR:
                return True
    return False


def check_devices() -> None:
    """Raises an error if jax does not find the devices that JAX_PLATFORMS names.

    Raises:
        UserError: the machine has no such device, or the package for it is not installed.
        ClusterError: the device may be there, such as one that a process which is ending still holds.
    """
    try:
        jax.devices()
    except Exception as error:
        asked, reason = os.environ.get("JAX_PLATFORMS", ""), str(error)[:200]
        hint = install_hint("tpu" if "tpu" in asked else "cuda")
        message = f"jax did not find its devices; JAX_PLATFORMS is {asked!r}: unset it, or {hint}"
        message += f" ({reason})" if reason else ""
        # Without the package for GPUs, the error of jax has no text.
        is_installed = reason and "known backends" not in reason and "Failed to open" not in reason
        may_pass = is_installed and (has_nvidia_gpu() or may_have_tpu())
        raise (ClusterError if may_pass else UserError)(message) from error


def hide_libtpu() -> None:
    """Prevents jax from loading libtpu on a machine without a TPU.

    libtpu may be installed on such a machine for `bert-jax estimate`, which needs only the library. If jax
    loads it in other commands, it looks for a TPU and prints errors. Call this function before anything
    imports jax. It does nothing if JAX_PLATFORMS names the TPU.
    """
    if "jax" not in sys.modules and "tpu" not in os.environ.get("JAX_PLATFORMS", "") and not may_have_tpu():
        # With None in sys.modules, an import raises ImportError, as if the package were not installed.
        sys.modules.setdefault("libtpu", None)  # type: ignore[arg-type]


def show_libtpu() -> None:
    """Undoes `hide_libtpu`. Has no effect once jax has been imported."""
    if "jax" not in sys.modules and sys.modules.get("libtpu", sys) is None:
        del sys.modules["libtpu"]


def hide_gpu_plugins() -> None:
    """Prevents jax from loading its CUDA plugins on a machine without a GPU.

    The plugins may be installed on such a machine for `bert-jax estimate`, which needs only the libraries.
    Without a driver, they print a traceback in every command. Call this function before anything imports
    jax. It does nothing if JAX_PLATFORMS names the GPU.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    if "jax" in sys.modules or has_nvidia_gpu() or "cuda" in asked or "gpu" in asked:
        return
    for name in GPU_PLUGINS:
        # With None in sys.modules, an import raises ImportError, as if the package were not installed.
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]
    for name in _BACKENDS:
        nothing = types.ModuleType(name)
        setattr(nothing, "initialize", lambda: None)  # noqa: B010  # the only function that jax calls
        sys.modules.setdefault(name, nothing)


def show_gpu_plugins() -> None:
    """Undoes `hide_gpu_plugins`. Has no effect once jax has been imported."""
    if "jax" in sys.modules:
        return
    for name in (*GPU_PLUGINS, *_BACKENDS):
        module = sys.modules.get(name)
        if module is None or not hasattr(module, "__file__"):
            sys.modules.pop(name, None)
