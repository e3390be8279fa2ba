"""SIGTERM and SIGINT from the first moment of a command to its last.

While a run has steps that are not saved, `preemption.PreemptionGuard` takes note of a signal and the run
saves. At any other time there is nothing to lose, and a signal ends the command where it stands: by an
exception, which lets it clean up, and without one where the process is in a compilation or the like and does
not come back to Python.

This module imports no JAX, so that it is there before JAX is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from bert_jax.errors import Preempted, Terminated

# Commands that go on from what they have done. Another one begins anew.
RESUMABLE = ("demo", "data", "pretrain", "finetune")

_OUTSIDE_PYTHON_SECONDS = 2.0  # until a process that does not come back to Python is ended
_LATER_SECONDS = 0.01  # until the exception is raised, where it would be swallowed now
# Functions that Python or JAX calls on the side: an exception that leaves one is printed, and ends nothing.
_SWALLOWING = ("__del__", "_xla_gc_callback")
_CLEANING_SECONDS = 20.0  # the same for one that cleans up


class _State:
    command = ""
    received: int | None = None  # the signal that is ending this command
    handled = threading.Event()  # Python has got to it
    noting = 0  # how many `noted` blocks this process is in


def install(command: str) -> None:
    """Ends this process as `command` should be ended when SIGTERM or SIGINT comes. In the main thread, once.

    A signal that this process was started to ignore stays ignored. Those that came after `block` come now.
    """
    _State.command = command
    for number, default in (
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
    ):
        if signal.getsignal(number) == default:
            signal.signal(number, _end)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    # The interpreter's own handler, which runs at once, writes here. Ours waits for Python's main thread.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def block() -> None:
    """Keeps signals until `install`, also one in the program that replaces this one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Inside, whoever has set handlers sees to it that a signal ends the command."""
    _State.noting += 1
    try:
        yield
    finally:
        _State.noting -= 1


def received() -> int | None:
    """The signal that is ending this command, if there is one."""
    return _State.received


def tell(message: str) -> None:
    """Prints one line from a handler, which may have interrupted another print."""
    clear = "\r\x1b[K" if sys.stderr is not None and sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{clear}bert-jax: {message}\n".encode())


def stop_of(number: int) -> BaseException:
    """What ends the command by this signal, where it has nothing to save."""
    if number == signal.SIGINT:
        return KeyboardInterrupt("interrupted" + _what_next())
    if _State.command in RESUMABLE:
        return Preempted("stopped with nothing to save" + _what_next())
    return Terminated("stopped by SIGTERM" + _what_next())


def _what_next() -> str:
    again = "run the same command to go on" if _State.command in RESUMABLE else "the same command begins anew"
    return f"; {again}" if _State.command else ""


def exit_code(number: int) -> int:
    """Of a command that this signal ends."""
    if number == signal.SIGINT:
        return 130
    return 3 if _State.command in RESUMABLE else 143


def leave(code: int) -> None:
    """Ends this process now, without waiting for threads that are in JAX's hands."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _end(number, frame) -> None:
    _State.received = _State.received or number
    _State.handled.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # Extension modules print what interrupts their imports, and make other errors of it.
            tell(str(stop_of(number)))
            leave(exit_code(number))
        if frame.f_code.co_name in _SWALLOWING:
            signal.signal(signal.SIGALRM, lambda _, frame: _end(number, frame))
            signal.setitimer(signal.ITIMER_REAL, _LATER_SECONDS)
            return
        frame = frame.f_back
    raise stop_of(number)


def _watch(reader: int) -> None:
    """Ends the process when a signal came that Python has not got to."""
    while numbers := os.read(reader, 64):
        number = next((n for n in numbers if n in (signal.SIGTERM, signal.SIGINT)), None)
        if number is None or _State.noting or signal.getsignal(number) != _end:
            continue
        handled = _State.handled.wait(_OUTSIDE_PYTHON_SECONDS)
        if handled:
            # The process ends before this does, unless it hangs, or has swallowed the exception.
            threading.Event().wait(_CLEANING_SECONDS)
        if not _State.noting:
            tell(str(stop_of(number)))
            leave(exit_code(number))
