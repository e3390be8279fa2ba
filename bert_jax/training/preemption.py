"""Stops of a run: SIGTERM and SIGINT become requests to save and stop; a watchdog ends a stalled process."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental import multihost_utils

from bert_jax import signals
from bert_jax.errors import Preempted

# JAX chooses a number greater than all numbers that it has seen in this process, in any run, and only answers
# yes to that number. A later run that counted from 1 again would reach it late or never.
_SYNC_POINTS = itertools.count(1)


class PreemptionGuard:
    """Records SIGTERM and SIGINT as a stop request, which the train loop checks between dispatches.

    Before `hold` there are no unsaved steps, and the process's own signal handlers apply (see
    `bert_jax.signals`). With several processes, jax.distributed handles SIGTERM, and the processes agree on a
    dispatch after which all of them stop. For this, all processes have to check for a request the same number
    of times. SIGINT to one of several processes is forwarded as SIGTERM. The loop sets `step`, for messages.
    """

    def __init__(self, notice: Callable[[str], None] = signals.print_line):
        self.step = 0
        self._notice = notice
        self._signal: int | None = None
        self._distributed = jax.process_count() > 1
        self._previous: dict[int, Any] = {}
        self._held = contextlib.ExitStack()
        self._stopped = False

    def __enter__(self):
        if self._distributed:
            self._take(signal.SIGINT, lambda number, frame: os.kill(os.getpid(), signal.SIGTERM))
        return self

    def __exit__(self, error_type, *unused):
        self._held.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if error_type is None and self._signal and not self._stopped:
            # The signal arrived after the last check. It still has to stop the code that follows this run.
            handler = self._previous.get(self._signal)
            if callable(handler):
                handler(self._signal, None)

    def hold(self) -> None:
        """Turns signals into requests to save and stop from now on, because there will be unsaved steps."""
        if self._distributed:
            return
        self._held.enter_context(signals.noted())
        for number in (signal.SIGTERM, signal.SIGINT):
            self._take(number, self._receive)
        self._signal = signals.received()  # An earlier signal counts, even if its exception was swallowed.

    def _take(self, number, handler):
        with contextlib.suppress(ValueError):  # Outside the main thread, the caller handles signals.
            self._previous[number] = signal.signal(number, handler)

    def _receive(self, number, frame):
        if self._signal is None:
            self._signal = number
            if number == signal.SIGINT:
                self._notice(
                    f"stopping: step {self.step} will be saved; press Ctrl-C again to stop without saving"
                )
        elif number == signal.SIGINT:
            self._signal = number
            raise KeyboardInterrupt(
                f"stopped at step {self.step} without saving it; run the same command to resume from the "
                "last saved step"
            )

    def requested(self) -> bool:
        """Whether a stop is requested. All processes get the same answer."""
        if self._distributed and multihost_utils.reached_preemption_sync_point(next(_SYNC_POINTS)):
            self._signal = signal.SIGTERM
        return self._signal is not None

    def check(self) -> None:
        """Raises Interrupted if a stop is requested. It is called between the batches of an evaluation."""
        if self.requested():
            raise Interrupted

    def stop(self, message: str) -> None:
        """Ends the run: raises KeyboardInterrupt after SIGINT, Preempted after SIGTERM."""
        self._stopped = True
        message = f"{message}; run the same command to resume"
        raise KeyboardInterrupt(message) if self._signal == signal.SIGINT else Preempted(message)


class Interrupted(Exception):
    """Raised when a stop request interrupts an operation."""


class Watchdog:
    """Ends the process, with the stacks of its threads, after `seconds` without a heartbeat; 0 for no limit.

    The heartbeat of jax.distributed does not detect a process that is alive but blocked, for example in a
    collective that another process never entered. Such a process would block the whole pod.
    """

    def __init__(self, seconds: float):
        self._seconds, self._pauses = seconds, 0

    def __enter__(self) -> Watchdog:
        self.heartbeat()
        return self

    def __exit__(self, *unused) -> None:
        self._cancel()
        self._seconds = 0

    def heartbeat(self) -> None:
        """Records that the run made progress."""
        if self._seconds and not self._pauses:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=2)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the limit inside the block, such as while a program is compiled."""
        self._pauses += 1
        self._cancel()
        try:
            yield
        finally:
            self._pauses -= 1
            self.heartbeat()

    def _cancel(self) -> None:
        if self._seconds:
            faulthandler.cancel_dump_traceback_later()
