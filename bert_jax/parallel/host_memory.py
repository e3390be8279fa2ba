"""The memory of the host, and how glibc manages that of this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

from etils import epy

with epy.lazy_imports():
    import jax
    import psutil

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD = 64 * 2**20  # bytes by which the heap grows
# Of the second and the first version: the folder, files of the limit and of the usage, and what memory.stat
# calls cached files.
_CGROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
_SHARE = 8  # of the available memory, one part in eight may be temporary


def total_and_available() -> tuple[int, int]:
    """Returns the total and the available memory in bytes, within the limit of a container."""
    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    for folder, limit, usage, cached in _CGROUPS:
        try:
            bound, used = (int((folder / name).read_text()) for name in (limit, usage))
        except (OSError, ValueError):  # no cgroup of this kind, or "max"
            continue
        if bound < total:
            total, available = bound, min(available, bound - used + _cached(folder, cached))
    return total, max(available, 0)


def _cached(folder: Path, name: str) -> int:
    """Returns the bytes of files in the usage of a container, which are given up when memory is needed."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return next(int(value) for key, value in lines if key == name)
    return 0


def keep_freed_memory(temporary: int) -> bool:
    """Lets glibc keep the memory that is freed from now on, if there is enough memory for it.

    By default glibc returns large blocks to the system. Each step of training on a CPU then gets the memory
    of its activations anew, which the system fills with zeros: a fifth of the time of a step. Small
    allocations divide the blocks that are kept, so that the process grows for some steps, to about six times
    the temporary memory of a step. Memory is therefore kept only if eight times as much is available. All
    threads must use one heap, a setting of `host_tuning.restart_with_malloc_settings`.

    Args:
        temporary: bytes that a step allocates and frees.

    Returns:
        Whether freed memory is kept.
    """
    if "arena_max=1" not in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    if _SHARE * temporary > total_and_available()[1]:
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    return mallopt is not None and all(
        mallopt(parameter, value)
        for parameter, value in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1), (_M_TOP_PAD, _TOP_PAD))
    )


def keep_activations(compiled: jax.stages.Compiled, devices: int) -> bool:
    """Lets glibc keep the temporary memory of a program between its calls, if it runs on CPUs.

    Args:
        compiled: the compiled program.
        devices: the number of devices of this host that run it.

    Returns:
        Whether the memory is kept (see `keep_freed_memory`). It never is on other platforms.
    """
    if jax.default_backend() != "cpu":
        return False
    analysis: Any = compiled.memory_analysis()
    return keep_freed_memory(analysis.temp_size_in_bytes * devices)
