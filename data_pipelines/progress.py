"""How far a long job is and when it will end: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Reports one stage after another on stderr.

    Args:
        stream: where to; the standard error by default.
    """

    def __init__(self, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._bar: Any = None
        self._task: Any = None
        self._stage, self._total, self._done, self._unit, self._scale = "", 0.0, 0.0, "", 1.0
        self._begun = self._told = 0.0

    def start(self, stage: str, total: float, unit: str = "", scale: float = 1.0) -> None:
        """Begins a stage of `total` units; amounts are shown times `scale` with the name `unit`."""
        self.close()
        self._stage, self._total, self._done, self._unit, self._scale = stage, total, 0.0, unit, scale
        self._begun = self._told = time.monotonic()
        if self._stream.isatty():
            import rich.console
            import rich.progress as rp

            self._bar = rp.Progress(
                rp.TextColumn("{task.description}"),
                rp.BarColumn(),
                rp.TextColumn("{task.completed:.0f} of {task.total:.0f} " + unit),
                rp.TimeElapsedColumn(),
                rp.TextColumn("left"),
                rp.TimeRemainingColumn(),
                console=rich.console.Console(file=self._stream),
            )
            self._bar.start()
            self._task = self._bar.add_task(stage, total=total * scale)

    def advance(self, amount: float) -> None:
        """Tells that `amount` more units are done."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done * self._scale)
            return
        now = time.monotonic()
        if now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            print(self.line(now - self._begun), file=self._stream, flush=True)

    def line(self, elapsed: float) -> str:
        """The state of the stage in words."""
        rate = self._done / elapsed if elapsed else 0.0
        left = f"{_clock((self._total - self._done) / rate)} left" if rate else "time left unknown"
        done, total, rate = (value * self._scale for value in (self._done, self._total, rate))
        return f"{self._stage}: {done:.0f} of {total:.0f} {self._unit}, {rate:.3g} {self._unit}/s, {left}"

    def close(self) -> None:
        """Ends the stage; the bar is left as it stands."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _clock(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
