"""When a run has to end: asked to by a signal, agreed on by all of its processes, or stuck."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from bert_jax.errors import Preempted


class StopRequest:
    """SIGTERM and SIGINT, as something to ask for between two dispatches.

    With several processes jax.distributed listens for SIGTERM, and the processes agree on a dispatch after
    which all of them stop: each of them asks the same number of times.
    """

    def __init__(self):
        self._signal: int | None = None
        self._asked = 0
        self._distributed = jax.process_count() > 1
        self._previous: dict[int, Any] = {}

    def __enter__(self):
        for number in (signal.SIGINT,) if self._distributed else (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):  # not the main thread: the caller sees to signals
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *unused):
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _receive(self, number, frame):
        if self._signal == signal.SIGINT == number:
            raise KeyboardInterrupt  # the second time: without saving
        self._signal = number

    def requested(self) -> bool:
        if self._distributed:
            self._asked += 1
            if multihost_utils.reached_preemption_sync_point(self._asked):
                self._signal = signal.SIGTERM
        return self._signal is not None

    def leave(self, message: str) -> None:
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt(message)
        raise Preempted(f"{message}; run the same command to go on")

    @contextlib.contextmanager
    def saving(self, save_and_stop, step, state):
        """Leaves an evaluation that a stop request broke off through `save_and_stop`."""
        try:
            yield
        except BrokenOff:
            save_and_stop(step, state)


class BrokenOff(Exception):
    pass


class Watchdog:
    """Ends the process, with the stacks of its threads, when a run makes no progress for too long.

    A process that is gone is noticed by jax.distributed's heartbeat. One that lives and waits, for a
    collective that another never entered or for a file system, is not, and holds a pod for ever.

    Args:
        seconds: without a beat; 0 for never.
        end: called with the message when they are over.
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

    def beat(self) -> None:
        """There was progress."""
        self._last = time.monotonic()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, as while compiling, no time is too long."""
        self._paused += 1
        try:
            yield
        finally:
            self.beat()
            self._paused -= 1

    def _watch(self) -> None:
        while not self._closed.wait(min(self._seconds / 4, 10.0)):
            idle = time.monotonic() - self._last
            if idle > self._seconds and not self._paused:
                self._end(f"no step for {idle:.0f} s (--stall_timeout={self._seconds:g})")
                return


def _abort(message: str) -> None:
    place = f"process {jax.process_index()} of {jax.process_count()}: " if jax.process_count() > 1 else ""
    print(f"bert-jax: error: {place}{message}; the stacks of its threads follow", file=sys.stderr, flush=True)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
