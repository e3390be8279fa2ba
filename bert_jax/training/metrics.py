"""Writes metrics to files, TensorBoard, Weights & Biases and the terminal."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import jax
from etils import epy

from bert_jax import signals
from bert_jax.errors import UserError, check_installed, file_error, hide_secrets, optional_imports
from bert_jax.io import atomic, files, json_files, progress, scratch
from bert_jax.io.wording import first_line

with optional_imports("trackers"):
    import wandb
with epy.lazy_imports():
    from tensorboardX import event_file_writer, record_writer
    from tensorboardX.proto import event_pb2, summary_pb2

_FILE = "metrics.jsonl"
_FLUSH_SECONDS = 60.0  # The interval between flushes of the files, and between their uploads.

BEST_SO_FAR = "best_so_far"  # The metric that is 1 if an evaluation has the best score so far, else 0.

# The metrics that the terminal shows, in order, and their formats. The files get all metrics.
_LOSSES = "loss mlm_loss mlm_accuracy clm_loss clm_accuracy generator_loss discriminator_loss"
_SHOWN = {
    **{name: name + " {:.4f}" for name in _LOSSES.split()},
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
    """Writes the metrics and messages of one run, in process 0.

    `metrics.jsonl` has one line per step and kind: {"step": 100, "kind": "train", "loss": 7.1, ...}. Values
    that are not finite are written as null. The files of a remote directory are written to a local one and
    uploaded by a thread. On a terminal, a progress bar below the lines shows the time left.

    Without a `directory`, no files are written. `terminal` is whether stdout is one; None to detect it.
    `trackers` is "wandb" to also log to Weights & Biases, which gets `config`, or "".
    """

    def __init__(
        self,
        directory: files.PathLike | None,
        *,
        total_steps: int = 0,
        terminal: bool | None = None,
        trackers: str = "",
        config: Mapping[str, Any] | None = None,
    ):
        self._primary = jax.process_index() == 0
        self._directory = os.fspath(directory) if directory is not None and self._primary else ""
        self._total = total_steps
        self._cleanup = contextlib.ExitStack()
        self._local = self._directory  # where the files are written
        self._uploads: _Uploads | None = None
        if files.is_remote(self._directory):
            self._local = self._cleanup.enter_context(scratch.directory())
            self._uploads = _Uploads(self._local, self._directory, self.message)
        self._lines: TextIO | None = None
        self._events: _Events | None = None
        self._has_failed = False  # whether the files cannot be written any more
        self._flushed = -math.inf
        self._tracker: _WeightsAndBiases | None = None
        if trackers and self._directory:
            self._tracker = _WeightsAndBiases(self._directory, config or {}, self.message)
        self._steps: int | None = None  # the bar of the steps
        self._bars = None
        if self._primary and (progress.shows_bars(sys.stdout) if terminal is None else terminal):
            self._bars = progress.make_bars(sys.stdout)

    def rewind(self, step: int) -> None:
        """Opens the files, without the metrics of steps after `step`, from which the run resumes."""
        if self._bars:
            self._steps = self._bars.add_task("steps", total=self._total or None, completed=step, unit="")
            self._bars.start()
        if not self._directory:
            return
        with self._storing():
            _rewind(os.path.join(self._directory, _FILE), os.path.join(self._local, _FILE), step)
            self._events = _Events(os.path.join(self._local, "tensorboard"), step)
        if self._tracker:
            self._tracker.start()

    def write(self, step: int, values: Mapping[str, float], kind: str = "train") -> None:
        """Writes the metrics after `step` steps; `kind` is "train" or the name of an evaluator."""
        if not self._primary:
            return
        values = {name: float(value) for name, value in values.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        named = {f"{kind}/{name}": value for name, value in values.items()}
        with self._storing():
            if self._directory and not self._has_failed:
                if self._lines is None:
                    self._lines = open(os.path.join(self._local, _FILE), "a", buffering=1)  # noqa: SIM115
                self._lines.write(json.dumps({"step": step, "kind": kind} | finite) + "\n")
            if self._events:
                self._events.add_scalars(step, named)
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self.flush()
        if self._tracker:
            self._tracker.log(step, {name: x for name, x in named.items() if math.isfinite(x)})
        shown = [form.format(values[name]) for name, form in _SHOWN.items() if name in values]
        if kind == "eval":  # Evaluations are rare, so the terminal can show all of their metrics.
            others = [name for name in values if name not in (*_SHOWN, BEST_SO_FAR)]
            shown += [f"{name} {values[name]:.4f}" for name in others]
        if values.get(BEST_SO_FAR):
            shown.append("(best so far)")
        if values.get("skipped"):
            shown.append(f"skipped {values['skipped']:.0f}")
        rate = values.get("steps_per_second")
        if rate and step < self._total and not self._bars:
            shown.append(f"left {progress.clock((self._total - step) / rate)}")
        label = "step" if kind == "train" else kind
        self.message("  ".join([f"{label} {step:>{len(str(self._total))}}", *shown]))
        if kind == "train":
            self.at_step(step)

    def at_step(self, step: int) -> None:
        """Shows the progress. It is called at every step with the last step known to be done."""
        if self._bars:
            self._bars.update(self._steps, completed=step)

    @contextlib.contextmanager
    def stage(self, name: str, total: float | None = None, unit: str = "") -> Iterator[Callable[..., None]]:
        """Shows the progress of a stage on a terminal; elsewhere, a line announces a stage without units.

        It yields a function (units done) or (units done, total), for totals that are not known in advance.
        """
        if self._bars:
            bars, task = self._bars, self._bars.add_task(name, total=total, unit=unit)
            try:
                yield lambda done, total=total: bars.update(task, completed=done, total=total)
            finally:
                bars.remove_task(task)
            return
        if not unit:
            self.message(name)
        yield lambda done, total=None: None

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
        if not self._primary:
            return
        if self._bars:
            self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        try:
            print(text, flush=True)
        except OSError as error:
            # Ctrl-C also ends `tee`, while the run still has to save a step. Logs may also fill the disk.
            signals.discard_output()
            gone = isinstance(error, BrokenPipeError)
            what = "nothing reads the output any more" if gone else f"the output: {error.strerror or error}"
            signals.print_line(f"{what}; the run continues without it")

    def flush(self) -> None:
        """Flushes all files before a step is saved; remote files are uploaded in the background."""
        with self._storing():
            if self._events:
                self._events.flush()
            if self._uploads:
                self._uploads.start()
        self._flushed = time.monotonic()

    def close(self) -> None:
        """Closes the files and the progress bar; raises StorageError if the last metrics cannot be stored."""
        if self._bars:
            self._bars.stop()
            self._bars = None
        try:
            with self._storing(), self._cleanup:
                self._close_files()
                if self._uploads:
                    self._uploads.close()
        finally:
            self._uploads = None
            if self._tracker:
                self._tracker.close()

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._close_files()
            self._has_failed, self._uploads = True, None
            message = f"{self._directory}: the metrics cannot be written ({error.strerror or error})"
            raise file_error(message, error) from error

    def _close_files(self) -> None:
        lines, self._lines, events, self._events = self._lines, None, self._events, None
        with contextlib.ExitStack() as closing:
            for file in (lines, events):
                if file is not None:
                    closing.callback(file.close)


def _rewind(path: str, local: str, step: int) -> None:
    """Writes the lines of `path` up to a step to `local`."""
    if not files.exists(path):
        return
    text = files.read(path).decode("utf-8", "replace")
    # A line may be cut off right before its end, and the next one would be appended to it.
    kept = "".join(line + "\n" for line in text.splitlines() if _step_of(line) <= step)
    if kept != text:
        atomic.write_text(path, kept)
    if local != path:
        atomic.write_text(local, kept, sync=False)


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf


class _Uploads:
    """Copies the files of a local directory to a remote one, in a thread, whenever they have changed.

    A failed upload is logged. The local files stay, so later uploads include the missing content.
    """

    def __init__(self, source: str, target: str, log: Callable[[str], None]):
        self._source, self._target, self._log = source, target, log
        self._sizes: dict[str, int] = {}  # sizes of the uploaded files
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="metrics-upload")
        self._last: concurrent.futures.Future[None] | None = None

    def start(self) -> None:
        if self._last is None or self._last.running() or self._last.done():  # else it has not begun
            self._last = self._thread.submit(self._try)

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._upload()

    def _try(self) -> None:
        try:
            self._upload()
        except Exception as error:  # The thread of the run must not depend on the network.
            self._log(f"warning: {self._target}: uploading the metrics failed ({error}); it is repeated")

    def _upload(self) -> None:
        for name in files.walk(self._source):
            path, target = os.path.join(self._source, name), os.path.join(self._target, name)
            if files.size(path) != self._sizes.get(name):
                content = files.read(path)  # in one call, because the file may grow
                files.make_directory(files.parent(target))
                atomic.write_file(target, content)
                self._sizes[name] = len(content)


class _Events:
    """A TensorBoard event file. A SummaryWriter would block forever after the first write that fails."""

    def __init__(self, directory: str, step: int):
        record_writer.directory_check(directory)
        # File names contain the time in seconds. The suffix prevents a run that is restarted within a second
        # from overwriting the events of the first process.
        suffix = f".{os.getpid()}-{step}"
        self._file = event_file_writer.EventsWriter(os.path.join(directory, "events"), suffix)
        self.flush, self.close = self._file.flush, self._file.close
        # makes TensorBoard hide the later steps of an earlier process, which may not have saved any
        self._add(step + 1, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, summary=summary_pb2.Summary(value=scalars))

    def _add(self, step: int, **content: Any) -> None:
        self._file.write_event(event_pb2.Event(wall_time=time.time(), step=step, **content))


class _WeightsAndBiases:
    """The run in Weights & Biases. After a failure, it logs a warning and stops logging to W&B.

    `wandb login`, WANDB_PROJECT and WANDB_MODE configure the account and the project. A resumed run continues
    in the same W&B run, whose id is in the work directory. W&B ignores repeated steps.
    """

    def __init__(self, directory: str, config: Mapping[str, Any], warn: Callable[[str], None]):
        check_installed("wandb", "trackers", "trackers=wandb")
        self._directory, self._config, self._warn = directory, hide_secrets(config), warn
        self._run: Any = None

    def start(self) -> None:
        path = os.path.join(self._directory, "wandb-run.txt")
        id_ = files.read(path).decode().strip() if files.exists(path) else ""
        options = {} if files.is_remote(self._directory) else {"dir": self._directory}
        options |= {"id": id_, "resume": "allow"} if id_ else {}
        sys.argv[1:] = map(hide_secrets, sys.argv[1:])  # W&B uploads the arguments
        with self._guarded():
            self._run = wandb.init(
                name=files.name(self._directory),
                project=os.environ.get("WANDB_PROJECT", "bert_jax"),
                config=dict(self._config),
                **options,
            )
            atomic.write_text(path, f"{self._run.id}\n")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        with self._guarded():
            if self._run is not None:
                self._run.log(dict(values), step=step)

    def close(self) -> None:
        with self._guarded():
            if self._run is not None:
                self._run.finish()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._run = None
            self._warn(f"warning: wandb fails and is no longer used: {first_line(error)}")


def read_metrics(directory: files.PathLike, kind: str | None = None) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory, or only one kind; [] without the file."""
    rows = json_files.read_lines(os.path.join(directory, _FILE))
    rows = (row for row in rows if json_files.is_of(row.get("step"), int))
    return [row for row in rows if kind is None or row.get("kind") == kind]


def metrics_of_run(directory: files.PathLike) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory. Raises UserError if it has no lines."""
    rows = read_metrics(directory)
    if not rows:
        raise UserError(f"{directory}: no metrics; expected the work directory of a run with a logged step")
    return rows
