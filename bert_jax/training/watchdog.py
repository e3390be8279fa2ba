"""Ends a process that makes no progress."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from bert_jax.parallel import distributed


class Watchdog:
    """Ends the process and prints the stacks of its threads if there is no heartbeat for too long.

    The heartbeat of jax.distributed detects processes that have died. It does not detect a process that is
    alive but blocked, for example in a collective that another process never entered or by a file system.
    Such a process would block the whole pod.

    Args:
        seconds: the longest time between two heartbeats; 0 for no limit.
        end: called with the error message when the limit is exceeded; by default it ends the process.
    """

    def __init__(self, seconds: float, end: Callable[[str], None] | None = None):
        self._seconds, self._end = seconds, end or _abort
        self._last = time.monotonic()
        self._paused = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        if self._seconds > 0:
            self._thread.start()
        return self

    def __exit__(self, *unused) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def heartbeat(self) -> None:
        """Records that the run made progress."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the limit inside the block, such as while a program is compiled."""
        self._paused += 1
        try:
            yield
        finally:
            self.heartbeat()
            self._paused -= 1

    def _watch(self) -> None:
        while not self._closed.wait(min(self._seconds / 4, 10.0)):
            if self._paused:
                continue
            # Read after `_paused`: a block that ended just before it has sent a heartbeat.
            idle = time.monotonic() - self._last
            if idle > self._seconds:
                self._end(f"no step for {idle:.0f} s (--stall_timeout={self._seconds:g})")
                return


def _abort(message: str) -> None:
    message = f"bert-jax: error: {distributed.line_prefix()}{message}; the stacks of its threads follow"
    print(message, file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
