"""Handles SIGTERM and SIGINT from the first moment of a command to its last.

While a run has unsaved steps, `preemption.PreemptionGuard` records a signal and the run saves. At any other
time nothing can be lost, and a signal ends the command immediately: normally by an exception, which lets the
command clean up, but without one if the process is in a compilation or another long call that does not return
to Python.

This module does not import JAX, so that signals are handled before JAX is imported.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from bert_jax.errors import Preempted, Terminated, hide_secrets

# Commands that can be resumed. All others start again.
RESUMABLE = ("demo", "data", "pretrain", "finetune", "sweep")

_OUTSIDE_PYTHON_SECONDS = 2.0  # delay before a process that does not return to Python is ended
_CLEANING_SECONDS = 10.0  # delay before a process that is cleaning up, or ignores the exception, is ended

EXIT_CODES = {Preempted: 3, Terminated: 143, KeyboardInterrupt: 130}


class _State:
    command = ""
    received: int | None = None  # the signal that is ending this command
    handled = threading.Event()  # set when the Python handler has run
    noting = 0  # number of nested `noted` blocks


def install(command: str) -> None:
    """Installs handlers for SIGTERM and SIGINT that end this process as appropriate for `command`.

    A signal that this process was started to ignore stays ignored. Signals that arrived after `block` are
    delivered now.
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
    # The interpreter's own handler writes here immediately. A Python handler waits for the main thread.
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def block() -> None:
    """Blocks SIGTERM and SIGINT until `install`, which a program that replaces this one may also call."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """While the block runs, the handlers that the caller has set are responsible for ending the command."""
    _State.noting += 1
    try:
        yield
    finally:
        _State.noting -= 1


def received() -> int | None:
    """Returns the signal that is ending this command, or None."""
    return _State.received


def print_line(message: str) -> None:
    """Prints one line to stderr, also from a signal handler, which may have interrupted another print."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{clear}bert-jax: {hide_secrets(message)}\n".encode(errors="backslashreplace"))


def discard_output() -> None:
    """Discards all further output, because it cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def discard_full_output() -> bool:
    """Discards all further output if an empty line cannot be printed; returns whether that is so."""
    try:
        print(flush=True)
    except OSError:
        discard_output()
        return True
    return False


def stop_of(number: int) -> Preempted | Terminated | KeyboardInterrupt:
    """Returns the exception with which a signal ends a command that has nothing to save."""
    if number == signal.SIGINT:
        return KeyboardInterrupt("interrupted" + _what_next())
    if _State.command in RESUMABLE:
        return Preempted("stopped with nothing to save" + _what_next())
    return Terminated("stopped by SIGTERM" + _what_next())


def _what_next() -> str:
    again = "run the same command to resume" if _State.command in RESUMABLE else "the command starts over"
    return f"; {again}" if _State.command else ""


def leave(code: int) -> None:
    """Ends this process now, without waiting for threads that are running inside JAX."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _print_and_leave(number: int) -> None:
    stop = stop_of(number)
    print_line(str(stop))
    leave(EXIT_CODES[type(stop)])


def _end(number, frame) -> None:
    _State.received = _State.received or number
    _State.handled.set()
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            # Extension modules print an exception that interrupts their import and raise another one.
            _print_and_leave(number)
        frame = frame.f_back
    raise stop_of(number)


def _watch(reader: int) -> None:
    """Ends the process when a signal has arrived and Python has not handled it in time."""
    while numbers := os.read(reader, 64):
        number = next((n for n in numbers if n in (signal.SIGTERM, signal.SIGINT)), None)
        if number is None or _State.noting or signal.getsignal(number) != _end:
            continue
        handled = _State.handled.wait(_OUTSIDE_PYTHON_SECONDS)
        if handled:
            # Normally the process ends during this wait, unless it hangs or has swallowed the exception.
            threading.Event().wait(_CLEANING_SECONDS)
        if not _State.noting:
            _print_and_leave(number)
