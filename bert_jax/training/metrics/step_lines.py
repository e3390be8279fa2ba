"""Files with one line of JSON a step, from which a run that resumes removes the steps that it repeats."""

from __future__ import annotations

import contextlib
import json
import math
import os
from typing import TextIO

from bert_jax.io import atomic, files, json_files
from bert_jax.training.metrics.uploads import LARGEST


class StepLines:
    """A file to which lines are appended.

    For a URL, the lines are written to a local file, which the caller uploads (see `uploads`). After 1 MiB,
    they continue in another file, so that not all of them are uploaded each time; see
    `json_files.line_files`.

    Args:
        path: the file, which need not exist, as a local path or a URL.
        local_directory: where the lines are written for a URL; "" for a local path.
    """

    def __init__(self, path: str, local_directory: str = ""):
        self._path, self._local_directory = path, local_directory
        self._number = 0  # of the file
        self._file: TextIO | None = None

    def rewind(self, step: int) -> None:
        """Removes the lines of steps after `step`, and an incomplete last line."""
        self.close()  # or later lines would go to the file that is replaced
        for number, path in json_files.line_files(self._path).items():
            content = files.read(path).decode("utf-8", "replace")
            kept = [line for line in content.splitlines() if _step_of(line) <= step]
            # A line may be cut off right before its end, and the next one would be appended to it.
            if content != (whole := "".join(line + "\n" for line in kept)):
                atomic.write_text(path, whole)
            self._number = number
            if self._local_directory:
                atomic.write_text(self._local_path(), whole, sync=False)

    def append(self, line: str) -> None:
        """Writes a line, an object of JSON with its `step`, to the end of the file."""
        if self._file is None:
            self._file = open(self._local_path(), "a", buffering=1)  # noqa: SIM115 (kept open)
        self._file.write(line + "\n")
        if self._local_directory and self._file.tell() > LARGEST:
            self.close()
            self._number += 1

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Closes the file without what cannot be written, which Python 3.13 would report at its end."""
        with contextlib.suppress(OSError):
            self.close()

    def _local_path(self) -> str:
        path = json_files.line_file(self._path, self._number)
        return os.path.join(self._local_directory, files.name(path)) if self._local_directory else path


def _step_of(line: str) -> float:
    """Returns the step of a line, or infinity if the line is incomplete."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf
