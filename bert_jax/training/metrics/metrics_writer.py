"""Writes metrics, tables and pictures to files, TensorBoard, trackers and the terminal."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bert_jax import signals
from bert_jax.errors import UserError, file_error, hide_secrets
from bert_jax.io import files, json_files, markdown, progress, scratch
from bert_jax.training.metrics.events import Events
from bert_jax.training.metrics.step_lines import StepLines
from bert_jax.training.metrics.trackers import Trackers
from bert_jax.training.metrics.uploads import LARGEST, Uploads

_FILE, _TABLES_FILE = "metrics.jsonl", "tables.jsonl"

# Without a terminal, a line says how far a run or an evaluation is after so long without another line.
_QUIET_STEPS, _QUIET_STAGE = 60.0, 10.0  # seconds
_FLUSH_SECONDS = 60.0  # The interval between flushes of the files, and between their uploads.

BEST_SO_FAR = "best_so_far"  # The metric that is 1 if an evaluation has the best score so far, else 0.

# The metrics that the terminal shows, in order, and their formats. The files get all metrics.
_SHOWN = {
    "loss": "loss {:.4f}",
    "mlm_loss": "mlm_loss {:.4f}",
    "mlm_accuracy": "mlm_accuracy {:.4f}",
    "clm_loss": "clm_loss {:.4f}",
    "clm_accuracy": "clm_accuracy {:.4f}",
    "generator_loss": "generator_loss {:.4f}",
    "discriminator_loss": "discriminator_loss {:.4f}",
    "discriminator_recall": "recall {:.4f}",
    "nsp_accuracy": "nsp_accuracy {:.4f}",
    "accuracy": "accuracy {:.4f}",
    "grad_norm": "grad_norm {:.3g}",
    "learning_rate": "lr {:.3g}",
    "sequences_per_second": "{:,.1f} seq/s",
    "tokens_per_second": "{:,.0f} tokens/s",
    "mfu": "mfu {:.1%}",
}


class MetricsWriter:
    """Writes the metrics and messages of one run.

    `metrics.jsonl` has one line per step and kind: {"step": 100, "kind": "train", "loss": 7.1, ...}. Values
    that are not finite are written as null. `tables.jsonl` has one line per table, see `read_tables`; there
    is no such file in a run without tables. On a terminal, a progress bar below the lines shows the time
    left; elsewhere, a line says how far the run is after a minute without another one.

    Args:
        directory: the work directory, for these files and tensorboard/; None to write no files.
        total_steps: the number of steps of the run, for the time left; 0 if it is not known.
        primary: whether this process writes. One process of a run does.
        terminal: whether stdout is a terminal; None to detect it.
        trackers: names of experiment trackers, comma-separated; see `trackers`.
        config: the configuration of the run, for these.
    """

    def __init__(
        self,
        directory: files.PathLike | None,
        *,
        total_steps: int = 0,
        primary: bool = True,
        terminal: bool | None = None,
        trackers: str = "",
        config: Mapping[str, Any] | None = None,
    ):
        self._directory = os.fspath(directory) if directory is not None and primary else ""
        self._total, self._primary = total_steps, primary
        self._lines: StepLines | None = None
        self._tables: StepLines | None = None
        self._tensorboard: Events | None = None
        self._uploads: Uploads | None = None
        self._local = self._directory  # where the files are written
        self._cleanup = contextlib.ExitStack()
        self._flushed = -math.inf  # when the files were
        if self._directory:
            self._make_files()
        self._trackers: Trackers | None = None
        if trackers and self._directory:
            self._trackers = Trackers(trackers, self._directory, config or {}, self.message)
        self._resumed = 0  # the step from which the run starts or resumes
        self._begin: tuple[float, int] | None = None
        self._printed = time.monotonic()  # when the last line was
        self._steps: int | None = None  # the bar of the steps
        self._bars = None
        if primary and (sys.stdout.isatty() if terminal is None else terminal):
            self._bars = progress.make_bars(sys.stdout)

    def rewind(self, step: int) -> None:
        """Removes the metrics of steps after `step`, from which the run resumes, and opens the files.

        It is called again if the run goes back to an earlier step.
        Files are replaced atomically. An incomplete last line is removed too.

        Args:
            step: the number of steps done; 0 for a new run.
        """
        self._resumed, self._begin = step, None
        if self._bars:
            if self._steps is not None:
                self._bars.remove_task(self._steps)
            self._steps = progress.add_stage(self._bars, "steps", self._total or None, done=step)
            self._bars.start()
        with self._storing():
            self._close_files()
            if self._directory:
                self._make_files()
                for lines in self._files:
                    lines.rewind(step)
                self._open_tensorboard(step)
        if self._trackers:
            self._trackers.start()

    def write(self, step: int, values: Mapping[str, float], kind: str = "train") -> None:
        """Writes the metrics of a step.

        Args:
            step: the number of steps done.
            values: {name: Python float}.
            kind: "train", or the name of an evaluator, such as "eval".
        """
        if not self._primary:
            return
        values = {name: float(value) for name, value in values.items()}
        with self._storing():
            if self._lines:
                finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
                self._lines.append(json.dumps({"step": step, "kind": kind} | finite))
            named = {f"{kind}/{name}": value for name, value in values.items()}
            if self._tensorboard:
                self._tensorboard.add_scalars(step, named)
            if time.monotonic() - self._flushed > _FLUSH_SECONDS:
                self._flush()
        if self._trackers:
            self._trackers.write(step, named)
        shown = [form.format(values[name]) for name, form in _SHOWN.items() if name in values]
        if kind == "eval":  # Evaluations are rare, so the terminal can show all of their metrics.
            others = [name for name in values if name not in (*_SHOWN, BEST_SO_FAR)]
            shown += [f"{name} {values[name]:.4f}" for name in others]
        if values.get(BEST_SO_FAR):
            shown.append("(best so far)")
        if values.get("skipped"):
            shown.append(f"skipped {values['skipped']:.0f}")
        if kind == "train" and not self._bars:
            shown += self._time_left(step)
        label = "step" if kind == "train" else kind
        self.message("  ".join([f"{label} {step:>{len(str(self._total))}}", *shown]))
        if kind == "train":
            self.at_step(step)

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Writes a table of texts to tables.jsonl, TensorBoard and the trackers.

        Args:
            step: the number of steps done.
            tag: the name of the table, after that of the evaluator, such as "eval/fills".
            header: the names of the columns.
            rows: the cells of each row, plain texts.
        """
        if not self._primary:
            return
        with self._storing():
            if self._tables:
                line = {"step": step, "tag": tag, "header": list(header), "rows": [list(row) for row in rows]}
                self._tables.append(json.dumps(line))
            if self._tensorboard:
                self._tensorboard.add_text(step, tag, markdown.table_of_texts(header, rows))
        if self._trackers:
            self._trackers.write_table(step, tag, header, rows)

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Writes a picture to TensorBoard and the trackers.

        Args:
            step: the number of steps done.
            tag: the name of the picture, after that of the evaluator, such as "eval/confusions".
            png: the content of a PNG file.
        """
        if not self._primary:
            return
        with self._storing():
            if self._tensorboard:
                self._tensorboard.add_image(step, tag, png)
        if self._trackers:
            self._trackers.write_image(step, tag, png)

    def at_step(self, step: int) -> None:
        """Shows the progress. It is called at every step with the last step known to be done."""
        if self._begin is None and step > self._resumed:
            # The time left is estimated from the steps after the first one, which includes one-time work.
            self._begin = time.monotonic(), step
            if self._bars:
                self._bars.update(self._steps, started=self._begin[0], first=step)
        if self._bars:
            self._bars.update(self._steps, completed=step)
        elif step > self._resumed and self._is_quiet(_QUIET_STEPS):
            of = f" of {self._total:,}" if self._total else ""
            self.message("  ".join([f"step {step:,}{of} is done", *self._time_left(step)]))

    def stage(self, name: str, total: float | None = None, unit: str = ""):
        """Returns a context that shows the progress of a stage, such as an evaluation.

        On a terminal, a separate bar does. Elsewhere, a stage without units says that it begins, and others
        how far they are after ten seconds without another line.

        The context yields a function (units done) or (units done, total), of which the latter is for totals
        that are not known in advance.

        Args:
            name: the label of the bar.
            total: the total number of units, if it is known in advance.
            unit: the name of the units.
        """
        if self._bars:
            return progress.stage(self._bars, name, total, unit)
        if not unit:
            self.message(name)

        def show(done: float, total: float | None = total) -> None:
            if self._is_quiet(_QUIET_STAGE):
                self.message(progress.amount(name, done, total, unit))

        return contextlib.nullcontext(show)

    def _is_quiet(self, seconds: float) -> bool:
        return time.monotonic() - self._printed >= seconds

    def notice(self, text: str) -> None:
        """Prints one line from a signal handler, which may have interrupted another print."""
        if self._bars:
            # The thread that was interrupted may hold the lock of the terminal, so another thread prints.
            threading.Thread(target=self.message, args=(f"bert-jax: {text}",), daemon=True).start()
        else:
            signals.print_line(text)

    def message(self, text: str) -> None:
        """Prints one line to the terminal, in the primary process."""
        text = hide_secrets(text)
        self._printed = time.monotonic()
        if not self._primary:
            return
        if self._bars:
            progress.print_above(self._bars, text)
            return
        try:
            print(text, flush=True)
        except OSError as error:
            # `tee` ends with a Ctrl-C that the run is about to save a step for; a disk may be full of logs.
            signals.discard_output()
            gone = isinstance(error, BrokenPipeError)
            what = "nothing reads the output any more" if gone else f"the output: {error.strerror or error}"
            signals.print_line(f"{what}; the run goes on without it")

    def flush(self) -> None:
        """Flushes all files, so that they survive the process. It is called before a step is saved.

        Remote files are uploaded in the background: a process that is killed at once loses the last lines.
        """
        with self._storing():
            self._flush()

    def _flush(self) -> None:
        if self._tensorboard:
            self._tensorboard.flush()
        if self._uploads:
            self._uploads.start()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Flushes and closes the files, and removes the progress bar.

        Raises:
            StorageError: the last metrics cannot be stored, and no earlier call has raised this error.
        """
        if self._bars:
            self._bars.stop()
            self._bars = None
        try:
            with self._storing():
                self._close_files()
        finally:
            if self._trackers:
                self._trackers.close()

    @property
    def _files(self) -> list[StepLines]:
        return [lines for lines in (self._lines, self._tables) if lines]

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        """Converts an OSError of the storage to a one-line error, after which no more files are written."""
        try:
            yield
        except OSError as error:
            for lines in self._files:
                lines.discard()
            if self._tensorboard:
                self._tensorboard.discard()
            self._lines = self._tables = self._tensorboard = self._uploads = None
            self._cleanup.close()
            message = f"{self._directory}: the metrics cannot be written ({error.strerror or error})"
            raise file_error(f"{message}; check the storage and run the same command", error) from error

    def _make_files(self) -> None:
        folder = ""
        if files.is_remote(self._directory):
            self._local = folder = self._cleanup.enter_context(scratch.directory())
            self._uploads = Uploads(folder, self._directory, self.message)
        self._lines = StepLines(os.path.join(self._directory, _FILE), folder)
        self._tables = StepLines(os.path.join(self._directory, _TABLES_FILE), folder)

    def _close_files(self) -> None:
        for lines in self._files:
            lines.close()
        if self._tensorboard:
            self._tensorboard.close()
            self._tensorboard = None
        if self._uploads:
            self._uploads.close()
            self._uploads = None
        self._cleanup.close()

    def _open_tensorboard(self, step: int) -> None:
        largest = LARGEST if self._uploads else math.inf
        try:
            self._tensorboard = Events(os.path.join(self._local, "tensorboard"), step, largest)
        except ImportError as error:
            self.message(f"warning: no TensorBoard events, {error}")

    def _time_left(self, step: int) -> list[str]:
        if self._begin is None or not self._begin[1] < step < self._total:
            return []
        began, first = self._begin
        left = (time.monotonic() - began) / (step - first) * (self._total - step)
        return [f"left {progress.clock(left)}"]


def read_metrics(directory: files.PathLike, kind: str | None = None) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory; [] if there is no such file.

    Args:
        directory: the work directory.
        kind: selects the lines of one kind; None for all.
    """
    rows = json_files.read_line_files(os.path.join(directory, _FILE))
    rows = (row for row in rows if json_files.is_of(row.get("step"), int))
    return [row for row in rows if kind is None or row.get("kind") == kind]


def metrics_of_run(directory: files.PathLike) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory.

    Raises:
        UserError: there are none.
    """
    rows = read_metrics(directory)
    if not rows:
        raise UserError(
            f"{directory}: it contains no metrics; expected the directory of a run that reached a log step"
        )
    return rows


def read_tables(directory: files.PathLike, tag: str) -> list[dict]:
    """Returns the lines of tables.jsonl in a work directory that have a tag, in the order of the steps.

    A line is {"step": 100, "tag": "eval/fills", "header": [column], "rows": [[cell]]} with texts in the
    cells. Other lines are left out; [] if there is no such file.
    """
    rows = json_files.read_line_files(os.path.join(directory, _TABLES_FILE))
    return [row for row in rows if row.get("tag") == tag and _is_table(row)]


def _is_table(row: Mapping[str, Any]) -> bool:
    header, lines = row.get("header"), row.get("rows")
    if not (isinstance(header, list) and isinstance(lines, list) and json_files.is_of(row.get("step"), int)):
        return False
    return all(isinstance(line, list) and len(line) == len(header) for line in lines)
