"""Bounds of time and memory for what reads a wrong input."""

import contextlib
import resource
import signal
from pathlib import Path

SECONDS = 60  # for one input; a hang, not slowness
BYTES = 3 << 30  # of address space that one input may take


class Hang(Exception):
    """An input took too long."""


@contextlib.contextmanager
def limits():
    """Ends what takes more than SECONDS by Hang, and what takes more than BYTES by MemoryError."""

    def stop(number, frame):
        raise Hang(f"over {SECONDS} seconds")

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (size + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
