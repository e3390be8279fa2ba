"""Throughput, mean metrics and goodput of the train steps, and profiler traces of some of them.

docs/running.md describes the fields of the training lines of metrics.jsonl.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch
from bert_jax.training import flops
from bert_jax.training.metrics import MetricsWriter

# The number of steps that may be queued on the devices. It has to keep them busy, but also leave time to
# finish the queued steps and save the state before a preempted machine shuts down.
STEPS_AHEAD = 2
_COUNTS = "sequences", "tokens"
NOT_FINITE = "loss, gradient or new parameters not finite"


class StepMetrics:
    """Collects the metrics of steps on the devices and writes their means over intervals of steps.

    `lines` are the training lines of metrics.jsonl up to the step from which the run resumes.
    """

    def __init__(self, flops_per_step: Callable[[int], float], lines: Sequence[Mapping[str, float]] = ()):
        self.peak, self._flops = 0.0, flops_per_step  # FLOP/s of all devices; 0 if it is not known
        # The last step of the last line with the number of consecutive skipped steps up to it; its loss.
        self.skipped, self.last_loss = (0, 0), 0.0
        last = lines[-1] if lines else {}
        run_seconds = last.get("run_seconds") or 0.0
        self._productive = run_seconds * (last.get("goodput") or 0.0)
        # The age must not decrease if the clock was set back between two starts.
        self._begun = min(now := time.time(), last.get("time", now)) - run_seconds
        self._open: list[tuple[int, Mapping[str, jax.Array]]] = []
        self._closed: list[tuple[int, Mapping[str, jax.Array]]] = []
        self._ahead: list[tuple[int, Mapping[str, jax.Array]]] = []
        self._since = time.monotonic()
        self._spent = dict.fromkeys(("input", "save", "eval"), 0.0)
        self._durations: list[float] = []
        self._done: float | None = None  # the time at which the latest finished step was detected

    def add(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Adds the metrics of a step that was just dispatched; waits for the step STEPS_AHEAD before it."""
        for steps in (self._open, self._ahead):
            steps.append((step, metrics))
        if len(self._ahead) > STEPS_AHEAD:
            jax.block_until_ready(self._ahead.pop(0))
            now = time.monotonic()
            if self._done is not None:
                self._durations.append(now - self._done)
            self._done = now

    def close_interval(self) -> None:
        """Ends the interval with the last step that was added, and starts copying its metrics to the host."""
        self._closed, self._open = self._closed + self._open, []
        for _, metrics in self._closed:
            for value in metrics.values():
                value.copy_to_host_async()

    def write(self, writer: MetricsWriter, before: int | None = None) -> None:
        """Writes the means over the closed interval, if there is one, and if it ends before `before`."""
        if not self._closed or (before is not None and self._closed[-1][0] >= before):
            return
        steps, self._closed = self._closed, []
        found = jax.device_get([metrics for _, metrics in steps])
        values = [{name: float(value) for name, value in metrics.items()} for metrics in found]
        now = time.monotonic()
        seconds = now - self._since
        line = means(values) | self._rates(values, seconds, steps[0][0]) | self._times(seconds)
        writer.write(steps[-1][0], line)
        self.last_loss = line["loss"]
        self._since = now
        for (step, _), value in zip(steps, values, strict=True):
            self.skipped = step, int(value.get("skipped", 0))
            if self.skipped[1] == 1:
                writer.message(f"warning: step {step} is skipped: {NOT_FINITE}")

    @contextlib.contextmanager
    def paused(self, writer: MetricsWriter):
        """Waits for the devices, and excludes the time in the block from the rates."""
        self.write(writer)
        jax.block_until_ready(self._ahead)
        self._ahead, self._done = [], None
        began = time.monotonic()
        yield
        self._since += time.monotonic() - began

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the time in the block to "input", "save" or "eval"."""
        began = time.monotonic()
        yield
        self._spent[what] += time.monotonic() - began

    def start(self, peak: float) -> None:
        """Begins the first interval; for `peak`, see the class."""
        self.peak, self._since = peak, time.monotonic()

    def _times(self, seconds: float) -> dict[str, float]:
        now = time.time()
        self._productive += seconds
        age = max(now - self._begun, self._productive, 1e-9)
        times = {"time": now, "run_seconds": age, "goodput": self._productive / age}
        times |= {f"{what}_seconds": spent for what, spent in self._spent.items()}
        self._spent = dict.fromkeys(self._spent, 0.0)
        if self._durations:
            for percent in (50, 95):
                times[f"step_seconds_p{percent}"] = float(np.percentile(self._durations, percent))
        self._durations.clear()
        return times

    def _rates(self, values: list[dict[str, float]], seconds: float, first: int = 1) -> dict[str, float]:
        rates = {
            f"{name}_per_second": sum(value[name] for value in values) / seconds
            for name in _COUNTS
            if name in values[0]
        }
        rates["steps_per_second"] = len(values) / seconds
        total = sum(map(self._flops, range(first, first + len(values))))
        mfu = flops.share_of_peak(total / seconds, self.peak)
        return rates if mfu is None else rates | {"mfu": mfu}


def means(values: list[dict[str, float]]) -> dict[str, float]:
    """Returns the metrics of an interval: means over the steps that were not skipped and have the metric.

    A metric of such a step is NaN if no example of its batch has it. `skipped` is a count over all steps,
    and `learning_rate` is from the last step.
    """
    accepted = [
        {name: x for name, x in value.items() if not math.isnan(x)}
        for value in values
        if not value.get("skipped")
    ] or values
    names = [name for name in dict.fromkeys(n for value in accepted for n in value) if name not in _COUNTS]
    each = {name: [value[name] for value in accepted if name in value] for name in names}
    line = {name: sum(found) / len(found) for name, found in each.items()}
    if "learning_rate" in line:
        line["learning_rate"] = values[-1]["learning_rate"]
    return line | {"skipped": float(sum(value.get("skipped", 0) > 0 for value in values))}


def parse_profile_steps(text: str) -> tuple[int, int] | None:
    """Parses `A:B` into (A, B), the first and the last step of a trace; "" into None."""
    if not text:
        return None
    first, _, last = text.partition(":")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
        raise UserError(f"--profile_steps={text}: expected FIRST:LAST, such as 100:105")
    return int(first), int(last)


class Profiler:
    """Traces the steps from the first to the last of `steps` in every process, for xprof in `directory`."""

    def __init__(self, directory: str, steps: tuple[int, int] | None, log: Callable[[str], None]):
        self._directory, self._log = directory, log
        self._first, self._last = steps or (-1, -1)
        self._trace = contextlib.ExitStack()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, *unused) -> None:
        self._trace.close()

    def before(self, step: int) -> None:
        """Starts the trace if it begins with this step. Call it before each step."""
        if step != self._first:
            return
        local, message = self._directory, f"wrote a trace of steps {step} to {self._last}: xprof "
        if files.is_remote(self._directory):  # xprof only reads local files.
            local = self._trace.enter_context(scratch.directory())
        self._trace.callback(self._log, message + self._directory)
        if local != self._directory:
            self._trace.callback(atomic.copy_directory, local, self._directory)
        self._trace.enter_context(jax.profiler.trace(local))

    def after(self, step: int, metrics: Mapping[str, jax.Array]) -> None:
        """Ends the trace if this is its last step, after waiting for it. Call it after each dispatch."""
        if step == self._last:
            jax.block_until_ready(metrics)
            self._trace.close()
