"""What orbax would print by itself is kept out of the terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable


def quieten_orbax() -> None:
    """Drops the log lines of orbax, and of what it leaves behind, until the process ends.

    Called before orbax saves or reads. A save or a read that fails raises one error, which is reported in
    one line; what else would be printed of it, up to hundreds of lines, says nothing more. Orbax logs a
    traceback of what it also raises, and warns of a checkpoint that is not whole before it raises. After the
    first write that failed it closes the event loop in which others are under way: each of them then logs
    that nobody asks for its error, and tensorstore reports that the loop is closed.
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
