"""Keeps the messages that orbax prints by itself out of the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable


def quieten_orbax() -> None:
    """Suppresses the log lines that orbax and its background tasks print, until the process ends.

    It is called before orbax saves or reads. A failed save or read raises one error, which is reported in one
    line; the up to hundreds of other lines add nothing to it. Orbax logs a traceback of an error that it also
    raises, and warns of an incomplete checkpoint before it raises. After the first failed write it closes the
    event loop in which other writes are still running: each of them then logs that its exception was never
    retrieved, and tensorstore reports that the loop is closed.
    """
    for name in ("absl", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(each, _NotOfOrbax) for each in logger.filters):
            logger.addFilter(_NotOfOrbax())
    if not isinstance(sys.unraisablehook, _NotClosedLoop):
        sys.unraisablehook = _NotClosedLoop(sys.unraisablehook)


class _NotOfOrbax(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio":
            return "never retrieved" not in str(record.msg)
        return "orbax" not in record.pathname or record.levelno >= logging.CRITICAL


class _NotClosedLoop:
    def __init__(self, otherwise: Callable):
        self._otherwise = otherwise

    def __call__(self, unraisable) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            self._otherwise(unraisable)
