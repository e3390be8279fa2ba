"""Shows the progress of a long job, as a bar on a terminal and as a line from time to time elsewhere."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from etils import epy

from bert_jax.errors import hide_secrets
from bert_jax.io import wording

with epy.lazy_imports():
    import rich.console as rich_console
    import rich.progress as rich_progress

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Reports the progress of one stage after another on a stream; by default standard error."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._bars: Any = None

    def start(self, stage: str, total: float | None = None, unit: str = "", scale: float = 1.0) -> None:
        """Begins a stage of `total` units, None if unknown; amounts are multiplied by `scale` for display."""
        self.close()
        self._stage, self._unit, self._scale = stage, unit, scale
        self._total = None if total is None else total * scale
        self._done = 0.0
        self._started = self._printed = time.monotonic()
        if shows_bars(self._stream):
            self._bars = make_bars(self._stream)
            self._bars.start()
            self._task = self._bars.add_task(stage, total=self._total, unit=unit)

    def advance(self, amount: float) -> None:
        """Reports that `amount` more units are done."""
        self.at(self._done + amount)

    def at(self, done: float) -> None:
        """Reports the number of units done so far."""
        self._done, shown, now = done, done * self._scale, time.monotonic()
        if self._bars:
            self._bars.update(self._task, completed=shown)
        if self._bars or now - self._printed < _SECONDS_BETWEEN_LINES:
            return
        self._printed, rate = now, shown / (now - self._started)
        line = f"{amount(self._stage, shown, self._total, self._unit)}, {wording.rate(rate)} {self._unit}/s"
        left = f", {clock((self._total - shown) / rate)} left" if self._total and rate else ""
        print(line + left, file=self._stream, flush=True)

    def close(self) -> None:
        """Ends the stage and leaves the bar in its current state."""
        if self._bars:
            self._bars.stop()
            self._bars = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def amount(stage: str, done: float, total: float | None, unit: str) -> str:
    """Returns how much of a stage is done: "evaluating: 5 of 28 batches", "reading: 0.2 of 0.7 MB"."""
    digits = 0 if total is None or total >= 10 or total == round(total) else 1
    of = "" if total is None else f" of {total:,.{digits}f}"
    return f"{stage}: {done:,.{digits}f}{of} {unit}"


def not_shown(done: int, total: int) -> None:
    """Shows no progress: the default for functions that report the numbers of units done and in total."""


def log(line: str) -> None:
    """Prints a line of progress to standard error, because standard output is for results."""
    print(hide_secrets(line), file=sys.stderr, flush=True)


@contextlib.contextmanager
def of_batches(stage: str, unit: str = "batches") -> Iterator[Callable[[int, int], None]]:
    """Yields a function of the numbers of units done and in total that shows progress on standard error."""
    with Progress() as shown:

        def on_batch(done: int, total: int) -> None:
            if done == 0:
                shown.start(stage, total, unit)
            shown.at(done)

        yield on_batch


def shows_bars(stream: TextIO) -> bool:
    """Whether a bar can be updated in place: on a terminal, and in a notebook that has ipywidgets."""
    if stream.isatty():
        return "JPY_PARENT_PID" not in os.environ  # the kernel of a notebook sets it
    if "IPython" not in sys.modules or importlib.util.find_spec("ipywidgets") is None:
        return False
    return bool(rich_console.Console().is_jupyter)


def make_bars(stream: TextIO) -> Any:
    """Returns a `rich.progress.Progress` for a stream that shows bars; its tasks have a field `unit`."""
    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(bar_width=20),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[unit]}", markup=False),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=rich_console.Console(file=stream),
        redirect_stdout=False,
    )


def clock(seconds: float) -> str:
    """Returns a duration as `1:02:03`."""
    return str(datetime.timedelta(seconds=int(seconds)))
