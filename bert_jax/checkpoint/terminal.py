"""Keeps the messages that orbax prints by itself out of the terminal, and the program's logging as it is."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def root_logger_kept() -> Iterator[None]:
    """Takes the handler away that absl gives the root logger in the block, if that has none before it.

    Orbax logs by absl, also as it is imported, and absl calls `logging.basicConfig` before its first message,
    even if that is not shown. A later `basicConfig` of the program itself would have no effect.
    """
    root, had_handlers = logging.getLogger(), bool(logging.getLogger().handlers)
    try:
        yield
    finally:
        for handler in [] if had_handlers else list(root.handlers):
            if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
                root.removeHandler(handler)


def quieten_orbax() -> None:
    """Suppresses the log lines that orbax and its background tasks print, until the process ends.

    It is called before orbax saves or reads. A failed save or read raises one error, which is reported in one
    line; the up to hundreds of other lines add nothing to it. Orbax logs a traceback of an error that it also
    raises, and warns of an incomplete checkpoint before it raises. After the first failed write it closes the
    event loop in which other writes are still running: each of them then logs that its exception was never
    retrieved or that it was destroyed, tensorstore reports that the loop is closed, and Python reports the
    errors of coroutines that are deleted.
    """
    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _NotOfOrbax) for each in logger.filters):
            logger.addFilter(_NotOfOrbax())
    if not isinstance(sys.unraisablehook, _NotOfOrbaxTasks):
        sys.unraisablehook = _NotOfOrbaxTasks(sys.unraisablehook)


def ignore_unbegun() -> None:
    """Ignores Python's warnings of coroutines that never began, until the process ends.

    It is called after orbax failed to save or to read: orbax closes its event loop while tasks wait in it.
    """
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)


_OF_CLOSED_LOOPS = ("never retrieved", "destroyed but it is pending")


class _NotOfOrbax(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio":
            return not any(words in str(record.msg) for words in _OF_CLOSED_LOOPS)
        return "orbax" not in record.pathname or record.levelno >= logging.CRITICAL


class _NotOfOrbaxTasks:
    def __init__(self, otherwise: Callable):
        self._otherwise = otherwise

    def __call__(self, unraisable) -> None:
        error, code = unraisable.exc_value, getattr(unraisable.object, "cr_code", None)
        is_closed_loop = isinstance(error, RuntimeError) and str(error) == "Event loop is closed"
        if not is_closed_loop and (code is None or "orbax" not in code.co_filename):
            self._otherwise(unraisable)
