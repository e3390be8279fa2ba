"""The host: its cores and memory, glibc's memory management, and the accelerators."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from etils import epy

from bert_jax.errors import ClusterError, UserError, install_hint

with epy.lazy_imports():
    import jax
    import psutil

_CGROUP = Path("/sys/fs/cgroup")  # the limits of a container


def usable_cores() -> float:
    """Returns the number of cores that this process may use, by its affinity and its container's quota."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        quota, period = map(int, (_CGROUP / "cpu.max").read_text().split())
        cores = min(cores, quota / period)
    return cores


def total_and_available_memory() -> tuple[int, int]:
    """Returns the total and the available memory in bytes, within the limit of a container."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    with contextlib.suppress(OSError, ValueError, KeyError):  # no container, or "max"
        bound, used = (int((_CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        used -= int(statistics["inactive_file"])  # cached files, given up when memory is needed
        if bound < total:
            total, available = bound, min(available, max(bound - used, 0))
    return total, available


# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8
_TOP_PAD = 64 * 2**20  # bytes by which the heap grows
_RESERVE = 8  # A step may allocate this fraction of the available memory.
_has_one_heap = False


def _mallopt(*options: tuple[int, int]) -> bool:
    function = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only
    return function is not None and all(function(*option) for option in options)


def use_huge_pages() -> None:
    """Restarts this program, in the same process, with huge pages, if JAX will run on the CPU.

    With pages of 4 KiB, a train step of BERT-base on a CPU takes about a tenth longer. glibc reads the
    setting only when a process starts. Does nothing if GLIBC_TUNABLES is set, as it is after the restart.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or not (has_nvidia_gpu() or may_have_tpu())
    if sys.platform != "linux" or "GLIBC_TUNABLES" in os.environ or not on_cpu:
        return
    os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def use_one_heap() -> None:
    """Lets all threads that are started from now on share one heap, as `keep_activations` needs."""
    global _has_one_heap
    _has_one_heap = sys.platform == "linux" and _mallopt((_M_ARENA_MAX, 1))


def keep_activations(compiled: jax.stages.Compiled, devices: int) -> bool:
    """Lets glibc keep the temporary memory of a program that runs on `devices` CPUs of this host.

    By default glibc returns large blocks to the system, which fills them with zeros for the next step: a
    fifth of the time of a step. The process grows for some steps, to about six times the temporary memory of
    a step. Memory is therefore kept, and True returned, only if eight times as much is available.
    """
    if not _has_one_heap or jax.default_backend() != "cpu":
        return False
    analysis: Any = compiled.memory_analysis()
    if _RESERVE * analysis.temp_size_in_bytes * devices > total_and_available_memory()[1]:
        return False
    return _mallopt((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD))


GPU_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")  # /dev/dxg is WSL's device
_TPU_DEVICES = ("/dev/accel*", "/dev/vfio/[0-9]*")
_TPU_VARIABLES = ("CLOUD_TPU_TASK_ID", "JAX_FORCE_TPU_INIT", "TPU_NAME", "TPU_WORKER_ID")


def has_nvidia_gpu() -> bool:
    """Whether the machine has an NVIDIA GPU device file, or the nvidia-smi tool."""
    return any(map(os.path.exists, _NVIDIA_DEVICES)) or shutil.which("nvidia-smi") is not None


def may_have_tpu() -> bool:
    """Whether device files or environment variables indicate a TPU."""
    return any(map(glob.glob, _TPU_DEVICES)) or any(name in os.environ for name in _TPU_VARIABLES)


def ignore_missing_accelerators() -> None:
    """Lets jax use the CPU, without errors, if libraries for TPUs or GPUs are installed without a device.

    Call this function before anything imports jax.
    """
    is_installed = any(map(importlib.util.find_spec, ("libtpu", *GPU_PLUGINS)))
    if is_installed and not has_nvidia_gpu() and not may_have_tpu():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")


def check_devices() -> None:
    """Checks that jax finds the devices that JAX_PLATFORMS names.

    It raises UserError if the machine has no such device, or the package for it is not installed, and
    ClusterError if the device may exist, but another process may still hold it.
    """
    try:
        jax.devices()
    except Exception as error:
        asked, reason = os.environ.get("JAX_PLATFORMS", ""), str(error)[:200]
        hint = install_hint("tpu" if "tpu" in asked else "cuda")
        message = f"jax did not find its devices; JAX_PLATFORMS is {asked!r}: unset it, or {hint}"
        message += f" ({reason})" if reason else ""
        # If the package for GPUs is not installed, jax's error has no text.
        is_installed = reason and "known backends" not in reason and "Failed to open" not in reason
        may_pass = is_installed and (has_nvidia_gpu() or may_have_tpu())
        raise (ClusterError if may_pass else UserError)(message) from error
