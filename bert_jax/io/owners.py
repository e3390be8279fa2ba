"""Which process something on a disk belongs to, and whether that process is dead.

A process is known by its machine, its id and its start: an id alone is used again, and processes of several
machines or containers may have the same one and write to one disk.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket

_TOKEN = re.compile(r"([0-9a-f]{12})-(\d+)-(\d+|unknown)")


def token() -> str:
    """The name of this process, for the names of files: MACHINE-PID-START."""
    return f"{machine()}-{os.getpid()}-{process_start(os.getpid())}"


def is_dead(text: str) -> bool | None:
    """Whether the process whose `token` stands in a text is dead; None when only another machine knows."""
    found = _TOKEN.search(text)
    if found is None or found[1] != machine():
        return None
    return process_start(int(found[2])) != found[3]


def is_token(text: str) -> bool:
    """Whether a `token` stands in a text."""
    return _TOKEN.search(text) is not None


@functools.cache
def machine() -> str:
    """12 hex digits of what shares process ids: a machine between two starts, or a container in it."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = socket.gethostname()
    return hashlib.sha256(f"{boot_id()} {namespace}".encode()).hexdigest()[:12]


def boot_id() -> str:
    """The same in all processes of a machine until it is started again."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in a form to compare; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return None
    return "unknown"
