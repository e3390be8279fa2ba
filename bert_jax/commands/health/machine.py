"""Checks memory, cores, disks and limits of this machine."""

from __future__ import annotations

import os
import resource
import shutil
import uuid

from bert_jax.commands.health.check import GIB, OK, PROBLEM, WARNING, Check, enough
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch


def check_memory(total: int, available: int) -> Check:
    """Checks the memory of the host, in bytes."""
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free"
    return enough(
        "memory",
        text,
        available,
        (1 * GIB, PROBLEM, "end other programs, or use a machine with at least 4 GiB"),
        (3 * GIB, WARNING, "training base needs about 3 GiB: choose a smaller size or end other programs"),
    )


def check_cores(cores: float, load: float) -> Check:
    """Warns if other programs use the processor."""
    text = f"{cores:g} usable, load {load:.1f}"
    busy = "other programs are running, so do not measure speed now"
    return enough("cores", text, 1.5 * cores, (load, WARNING, busy))


def check_directory(path: str) -> list[Check]:
    """Writes, renames, reads and removes a small file, as checkpoints do.

    Args:
        path: a directory or a URL. If the directory does not exist, its nearest existing parent is used.
    """
    remote = files.is_remote(path)
    directory = files.absolute(path)
    while not remote and not os.path.exists(directory):
        directory = os.path.dirname(directory)
    content = os.urandom(4096)
    place = os.path.join(directory, f".doctor-{uuid.uuid4().hex}")
    try:
        atomic.write_file(place, content)
        files.move(place, f"{place}-renamed")
        intact = files.read(f"{place}-renamed") == content
        files.remove(f"{place}-renamed")
    except OSError as error:
        detail = f"{directory}: {getattr(error, 'strerror', None) or error}"
        fix = "choose another --workdir" + ("" if remote else f", or chmod u+rwx {directory}")
        return [Check("write access", PROBLEM, detail, fix)]
    if not intact:
        detail = f"{directory}: a file has other contents than were written"
        return [Check("write access", PROBLEM, detail, "choose a --workdir on another disk")]
    checks = [Check("write access", OK, directory)]
    return checks if remote else [*checks, check_disk(shutil.disk_usage(directory).free)]


def check_disk(free: int) -> Check:
    """Checks the free space of the disk for work directories, in bytes."""
    fix = "free some space: three checkpoints of base need 4 GB"
    levels = (1 * GIB, PROBLEM, fix), (10 * GIB, WARNING, f"{fix}, of large 12 GB")
    return enough("disk", f"{free / GIB:.1f} GiB free", free, *levels)


def check_temporary() -> Check:
    """Checks that there is a directory for temporary files, and its free space."""
    try:
        path = scratch.system_directory()
    except UserError as error:
        detail, _, fix = str(error).rpartition("; ")
        return Check("temporary", PROBLEM, detail, fix)
    free = shutil.disk_usage(path).free
    digits = 1 if free >= GIB // 2 else 2
    detail = f"{path}: {free / GIB:.{digits}f} GiB free"
    return enough("temporary", detail, free, (GIB // 2, WARNING, "TMPDIR=/a/larger/disk"))


def check_shared_memory(path: str) -> Check:
    """Checks the shared memory, which holds the locks and queues of worker processes."""
    if not os.path.isdir(path):
        return Check("shared memory", OK, f"no {path} on this system")
    free = shutil.disk_usage(path).free
    if free < 32 * 2**20:
        detail = f"{path}: {free / 2**20:.0f} MiB free"
        return Check("shared memory", WARNING, detail, "docker run --shm-size=1g")
    return Check("shared memory", OK, f"{path}: {free / GIB:.1f} GiB free")


def check_open_files() -> Check:
    """Checks the limit on the number of open files."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft < 0:
        return Check("open files", OK, "no limit")
    return enough("open files", f"at most {soft}", soft, (512, WARNING, "ulimit -n 4096"))
