"""Files with one line of JSON a step, from which a run that resumes removes the steps that it repeats."""

from __future__ import annotations

import contextlib
import json
import math
import time
from typing import TextIO

from bert_jax.io import atomic, files
from bert_jax.training.metrics.events import FLUSH_SECONDS


class StepLines:
    """A file to which lines are appended. On an object store, the whole file is rewritten occasionally.

    Args:
        path: the file, which need not exist.
    """

    def __init__(self, path: str):
        self._path = path
        self._local = not files.is_remote(path)
        self._file: TextIO | None = None
        self._kept: list[str] = []
        self._written = 0.0

    def rewind(self, step: int) -> None:
        """Removes the lines of steps after `step`, and an incomplete last line."""
        self.close()  # or later lines would go to the file that is replaced
        try:
            content = files.read(self._path).decode("utf-8", "replace")
        except FileNotFoundError:
            content = ""
        kept = [line for line in content.splitlines() if _step_of(line) <= step]
        # A line may be cut off right before its end, and the next one would be appended to it.
        if content != (whole := "".join(line + "\n" for line in kept)):
            atomic.write_text(self._path, whole)
        if not self._local:
            self._kept = kept

    def append(self, line: str) -> None:
        """Appends a line, an object of JSON with its `step`."""
        if self._local:
            if self._file is None:
                self._file = open(self._path, "a", buffering=1)  # noqa: SIM115 (kept open)
            self._file.write(line + "\n")
        else:
            self._kept.append(line)
            if time.monotonic() - self._written > FLUSH_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Writes all lines to the file."""
        if self._file is not None:
            self._file.flush()
        elif self._kept:
            atomic.write_text(self._path, "".join(line + "\n" for line in self._kept))
            self._written = time.monotonic()

    def close(self) -> None:
        """Closes a local file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Closes a local file without what cannot be written, which Python 3.13 would report at its end."""
        with contextlib.suppress(OSError):
            self.close()


def _step_of(line: str) -> float:
    """Returns the step of a line, or infinity if the line is incomplete."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf
