"""Writes metrics, tables and images to files, TensorBoard, experiment trackers and the terminal."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from etils import epy

from bert_jax import signals
from bert_jax.errors import UserError, check_installed, file_error, hide_secrets, optional_imports
from bert_jax.io import atomic, comma_lists, files, json_files, markdown, progress, scratch
from bert_jax.io.wording import alternatives, first_line
from bert_jax.settings import config_fields

with optional_imports("trackers"):
    import mlflow
    import wandb
with epy.lazy_imports():
    from PIL import Image
    from tensorboardX import event_file_writer, record_writer, summary
    from tensorboardX.proto import event_pb2, summary_pb2

_PROJECT = "bert_jax"  # of trackers, unless the environment names one
_LARGEST = 1 << 20  # bytes of a remote file, after which another one is begun: object stores cannot append
_FILE, _TABLES_FILE = "metrics.jsonl", "tables.jsonl"

# Without a terminal, a line says how far a run or an evaluation is after so long without another line.
_QUIET_STEPS, _QUIET_STAGE = 60.0, 10.0  # seconds
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
        trackers: names of experiment trackers, comma-separated; see `TRACKERS`.
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
        self._lines: _StepLines | None = None
        self._tables: _StepLines | None = None
        self._tensorboard: _Events | None = None
        self._uploads: _Uploads | None = None
        self._local = self._directory  # where the files are written
        self._cleanup = contextlib.ExitStack()
        self._flushed = -math.inf  # when the files were
        if self._directory:
            self._make_files()
        self._trackers: _Trackers | None = None
        if trackers and self._directory:
            self._trackers = _Trackers(trackers, self._directory, config or {}, self.message)
        self._resumed = 0  # the step from which the run starts or resumes
        self._begin: tuple[float, int] | None = None
        self._printed = time.monotonic()  # when the last line was
        self._steps: int | None = None  # the bar of the steps
        self._bars = None
        if primary and (sys.stdout.isatty() if terminal is None else terminal):
            self._bars = progress.make_bars(sys.stdout)

    def rewind(self, step: int) -> None:
        """Opens the files, and removes the metrics of steps after `step`, from which the run resumes.

        It is called again if the run goes back to an earlier step. An incomplete last line is removed too.
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
                largest = _LARGEST if self._uploads else math.inf
                try:
                    self._tensorboard = _Events(os.path.join(self._local, "tensorboard"), step, largest)
                except ImportError as error:
                    self.message(f"warning: no TensorBoard events, {error}")
        if self._trackers:
            self._trackers.start()

    def write(self, step: int, values: Mapping[str, float], kind: str = "train") -> None:
        """Writes the metrics after `step` steps; `kind` is "train" or the name of an evaluator."""
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
            self._trackers.call("write", step, {name: x for name, x in named.items() if math.isfinite(x)})
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
        """Writes a table of texts, such as "eval/fills", to tables.jsonl, TensorBoard and the trackers."""
        if not self._primary:
            return
        with self._storing():
            if self._tables:
                line = {"step": step, "tag": tag, "header": list(header), "rows": [list(row) for row in rows]}
                self._tables.append(json.dumps(line))
            if self._tensorboard:
                self._tensorboard.add_text(step, tag, markdown.table_of_texts(header, rows))
        if self._trackers:
            self._trackers.call("write_table", step, tag, header, rows)

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Writes the content of a PNG file, such as "eval/confusions", to TensorBoard and the trackers."""
        if not self._primary:
            return
        with self._storing():
            if self._tensorboard:
                self._tensorboard.add_image(step, tag, png)
        if self._trackers:
            self._trackers.call("write_image", step, tag, png)

    def at_step(self, step: int) -> None:
        """Shows the progress. It is called at every step with the last step known to be done."""
        if self._begin is None and step > self._resumed:
            # The time left is estimated from the steps after the first one, which includes one-time work.
            self._begin = time.monotonic(), step
            if self._bars:
                self._bars.update(self._steps, started=self._begin[0], first=step)
        if self._bars:
            self._bars.update(self._steps, completed=step)
        elif step > self._resumed and time.monotonic() - self._printed >= _QUIET_STEPS:
            of = f" of {self._total:,}" if self._total else ""
            self.message("  ".join([f"step {step:,}{of} is done", *self._time_left(step)]))

    def stage(self, name: str, total: float | None = None, unit: str = ""):
        """Returns a context that shows the progress of a stage, such as an evaluation.

        The context yields a function (units done) or (units done, total); the latter is for totals that are
        not known in advance. Without a terminal, a stage without units says that it begins, and others how
        far they are after ten seconds without another line.
        """
        if self._bars:
            return progress.stage(self._bars, name, total, unit)
        if not unit:
            self.message(name)

        def show(done: float, total: float | None = total) -> None:
            if time.monotonic() - self._printed >= _QUIET_STAGE:
                self.message(progress.amount(name, done, total, unit))

        return contextlib.nullcontext(show)

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
            signals.print_line(f"{what}; the run continues without it")

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
                self._trackers.call("close")

    @property
    def _files(self) -> list[_StepLines]:
        return [lines for lines in (self._lines, self._tables) if lines]

    @contextlib.contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            for lines in self._files:
                with contextlib.suppress(OSError):
                    lines.close()
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
            self._uploads = _Uploads(folder, self._directory, self.message)
        self._lines = _StepLines(os.path.join(self._directory, _FILE), folder)
        self._tables = _StepLines(os.path.join(self._directory, _TABLES_FILE), folder)

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

    def _time_left(self, step: int) -> list[str]:
        if self._begin is None or not self._begin[1] < step < self._total:
            return []
        began, first = self._begin
        left = (time.monotonic() - began) / (step - first) * (self._total - step)
        return [f"left {progress.clock(left)}"]


class _StepLines:
    """A file to which lines are appended.

    For a URL, they are written to `local_directory`, which is uploaded, and continue in another file after
    1 MiB (see `json_files.line_files`), so that not all of them are uploaded each time.
    """

    def __init__(self, path: str, local_directory: str = ""):
        self._path, self._local_directory = path, local_directory
        self._number = 0  # of the file
        self._file: TextIO | None = None

    def rewind(self, step: int) -> None:
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
        if self._file is None:
            self._file = open(self._local_path(), "a", buffering=1)  # noqa: SIM115 (kept open)
        self._file.write(line + "\n")
        if self._local_directory and self._file.tell() > _LARGEST:
            self.close()
            self._number += 1

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _local_path(self) -> str:
        path = json_files.line_file(self._path, self._number)
        return os.path.join(self._local_directory, files.name(path)) if self._local_directory else path


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return math.inf


class _Uploads:
    """Copies the files of a local directory to a remote one, in a thread, whenever they have grown.

    An upload that fails is logged. The local files stay, so that later uploads include what it lacks.
    """

    def __init__(self, source: str, target: str, log: Callable[[str], None]):
        self._source, self._target, self._log = source, target, log
        self._sizes: dict[str, int] = {}  # of the files that are uploaded
        self._error = ""  # the last one that was logged
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
            self._error = ""
        except Exception as error:  # The thread of the run must not depend on the network.
            if str(error) != self._error:
                self._error = str(error)
                self._log(f"warning: {self._target}: uploading the metrics failed ({error}); it is repeated")

    def _upload(self) -> None:
        for name in files.walk(self._source):
            path, target = os.path.join(self._source, name), os.path.join(self._target, name)
            if files.size(path) != self._sizes.get(name):
                content = files.read(path)  # at once, since the file may grow
                files.make_directory(files.parent(target))
                atomic.write_file(target, content)
                self._sizes[name] = len(content)


class _Events:
    """The TensorBoard event files of one process; another file is begun after `largest` bytes.

    Events are written in the caller's thread. The thread of tensorboardX's SummaryWriter ends at the first
    write that fails, and adding to its queue then blocks forever.
    """

    def __init__(self, directory: str, step: int, largest: float = math.inf):
        record_writer.directory_check(directory)
        # File names contain the time in seconds. The suffix prevents a run that is restarted within a second
        # from overwriting the events of the first process.
        self._prefix, self._suffix = os.path.join(directory, "events"), f".{os.getpid()}-{step}"
        self._file = event_file_writer.EventsWriter(self._prefix, self._suffix)
        self._largest, self._size, self._files = largest, 0, 1
        # makes TensorBoard hide the later steps of an earlier process, which may not have saved any
        purge = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(step + 1, session_log=purge)

    def add_scalars(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step, summary_pb2.Summary(value=scalars))

    def add_text(self, step: int, tag: str, text: str) -> None:
        self._add(step, summary.text(tag, text))

    def add_image(self, step: int, tag: str, png: bytes) -> None:
        width, height = struct.unpack(">II", png[16:24])  # of the chunk IHDR, which is the first
        image = summary_pb2.Summary.Image(width=width, height=height, encoded_image_string=png)
        self._add(step, summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, image=image)]))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()  # fails in its flush, before it closes
        with contextlib.suppress(OSError):
            self._file._py_recordio_writer.close()

    def _add(self, step: int, values) -> None:
        if self._size > self._largest:
            self._file.close()
            self._file = event_file_writer.EventsWriter(self._prefix, f"{self._suffix}-{self._files:06}")
            self._size, self._files = 0, self._files + 1
        self._write(step, summary=values)

    def _write(self, step: int, **content) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step, **content)
        self._file.write_event(event)
        self._size += event.ByteSize()


class _WeightsAndBiases:
    name = "wandb"

    def start(self, directory: str, config: Mapping[str, Any], id_: str) -> str:
        local = {} if files.is_remote(directory) else {"dir": directory}
        options: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", _PROJECT), **local}
        if id_:
            options |= {"id": id_, "resume": "allow"}
        sys.argv[1:] = map(hide_secrets, sys.argv[1:])  # which W&B uploads, too
        self._run = wandb.init(name=files.name(directory), config=dict(config), **options)
        return self._run.id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._run.log({tag: wandb.Table(columns=list(header), data=[list(row) for row in rows])}, step=step)

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        self._run.log({tag: wandb.Image(Image.open(io.BytesIO(png)))}, step=step)

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    name = "mlflow"

    def start(self, directory: str, config: Mapping[str, Any], id_: str) -> str:
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        run = mlflow.start_run(run_id=id_ or None, run_name=files.name(directory))
        if not id_:
            fields = [(name, str(value)[:500]) for name, value in config_fields.flatten(config)]
            for begin in range(0, len(fields), 100):  # MLflow's limits
                mlflow.log_params(dict(fields[begin : begin + 100]))
        return run.info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        mlflow.log_metrics(dict(values), step=step)

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        mlflow.log_text(markdown.table_of_texts(header, rows) + "\n", f"{tag}/{step}.md")

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        mlflow.log_image(Image.open(io.BytesIO(png)), key=tag, step=step)

    def close(self) -> None:
        mlflow.end_run()


TRACKERS: dict[str, Any] = {kind.name: kind for kind in (_WeightsAndBiases, _MLflow)}


class _Trackers:
    """The experiment trackers of a run.

    Where and as whom they log is set as their documentation says: `wandb login`, WANDB_PROJECT and
    WANDB_MODE; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. A run that resumes continues in the same run
    of the tracker, whose id is in the work directory. A tracker that fails is dropped with a warning.
    """

    def __init__(self, names: str, directory: str, config: Mapping[str, Any], warn: Callable[[str], None]):
        self._directory, self._config, self._warn = directory, hide_secrets(config), warn
        self._waiting = []
        for name in comma_lists.names(names, "trackers"):
            if name not in TRACKERS:
                raise UserError(f"trackers={names}: expected {alternatives(TRACKERS)}, or both with a comma")
            check_installed(name, "trackers", f"trackers={names}")
            self._waiting.append(TRACKERS[name]())
        self._open: list[Any] = []  # whose runs have begun

    def start(self) -> None:
        if self._open:
            self._warn(
                "warning: trackers keep the metrics of replayed steps; MLflow adds the new values, and W&B "
                "ignores them"
            )
            return
        self._open, self._waiting = self._waiting, []
        for tracker in list(self._open):
            path = os.path.join(self._directory, f"{tracker.name}-run.txt")
            before = files.read_text(path).strip() if files.exists(path) else ""
            id_ = self._try(tracker, "start", self._directory, self._config, before)
            if id_ and id_ != before:
                atomic.write_text(path, f"{id_}\n")

    def call(self, method: str, *args: Any) -> None:
        for tracker in list(self._open):
            self._try(tracker, method, *args)

    def _try(self, tracker: Any, method: str, *args: Any) -> Any:
        try:
            return getattr(tracker, method)(*args)
        except Exception as error:
            self._open.remove(tracker)
            self._warn(f"warning: {tracker.name} fails and is left out: {first_line(error)}")
        return None


def read_metrics(directory: files.PathLike, kind: str | None = None) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory, or those of one kind; [] without the file."""
    rows = json_files.read_line_files(os.path.join(directory, _FILE))
    rows = (row for row in rows if json_files.is_of(row.get("step"), int))
    return [row for row in rows if kind is None or row.get("kind") == kind]


def metrics_of_run(directory: files.PathLike) -> list[dict]:
    """Returns the lines of metrics.jsonl in a work directory, or raises UserError if there are none."""
    rows = read_metrics(directory)
    if not rows:
        raise UserError(
            f"{directory}: it contains no metrics; expected the directory of a run that reached a log step"
        )
    return rows


def read_tables(directory: files.PathLike, tag: str) -> list[dict]:
    """Returns the lines of tables.jsonl in a work directory that have a tag, in the order of the steps.

    A line is {"step": 100, "tag": "eval/fills", "header": [column], "rows": [[cell]]} with texts in the
    cells. The result is [] if there is no such file.
    """
    rows = json_files.read_line_files(os.path.join(directory, _TABLES_FILE))
    return [row for row in rows if row.get("tag") == tag]
