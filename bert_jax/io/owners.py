"""Identifies the process that created a file, and determines whether that process is dead.

A process is identified by its machine, its process id and its start time. The id alone is not enough: ids are
reused, and processes on several machines or in several containers can have the same id and share a disk.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket

_UNKNOWN = "unknown"
_TOKEN = re.compile(r"([0-9a-f]{12})-(\d+)-(\d+|unknown)")


def token() -> str:
    """Returns an identifier of this process for use in file names: MACHINE-PID-START."""
    return f"{machine()}-{os.getpid()}-{process_start(os.getpid())}"


def is_dead(text: str) -> bool | None:
    """Returns whether the process whose `token` occurs in `text` is dead.

    The result is None if there is no token, or if the process belongs to another machine.
    """
    found = _TOKEN.search(text)
    if found is None or found[1] != machine():
        return None
    return process_start(int(found[2])) not in (found[3], _UNKNOWN)


@functools.cache
def machine() -> str:
    """Returns 12 hex digits that identify a process id namespace.

    Such a namespace is a machine since its last boot, or a container on it.
    """
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = socket.gethostname()
    return hashlib.sha256(f"{boot_id()} {namespace}".encode()).hexdigest()[:12]


def boot_id() -> str:
    """Returns a string that is the same in all processes of a machine until the machine is rebooted."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> str | None:
    """Returns the start time of a local process as an opaque string; None if there is no such process.

    It is "unknown" if the system does not tell it, such as that of another user's process with `hidepid`.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return _UNKNOWN
    except (OSError, OverflowError):
        return None
    return _UNKNOWN
