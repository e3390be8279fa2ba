"""Experiment trackers beside TensorBoard: Weights & Biases, and MLflow.

Where and as whom they log is set as their own documentation says: `wandb login`, WANDB_PROJECT and
WANDB_MODE; MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. A run that is resumed goes on in the same run of
the tracker, whose id is kept in the work directory. A tracker that fails is left out with a warning: training
goes on.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from etils import epy

from bert_jax.errors import UserError, check_installed, hide_secrets, optional_imports
from bert_jax.io import atomic, comma_lists, files, markdown
from bert_jax.io.wording import alternatives, first_line
from bert_jax.settings import config_fields

with optional_imports("trackers"):
    import mlflow
    import wandb
with epy.lazy_imports():  # Only runs with trackers need it, which matplotlib brings.
    from PIL import Image

_PROJECT = "bert_jax"  # unless the environment names one
_LONGEST = 500  # characters of a parameter in MLflow
_AT_A_TIME = 100  # parameters


class Tracker(Protocol):
    """A service that a run logs to.

    Attributes:
        name: the name in the configuration, and of its package.
    """

    name: str

    def start(self, directory: str, config: Mapping[str, Any], id_: str) -> str:
        """Begins a run, or goes on with the one of this id, and returns its id.

        Args:
            directory: the work directory.
            config: the configuration of the run, nested.
            id_: the id that an earlier `start` has returned; "" for a new run.
        """
        ...

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs finite metrics by name, such as `train/loss`."""
        ...

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Logs a table of texts by its name, such as `eval/fills`."""
        ...

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Logs a picture by its name, given as the content of a PNG file."""
        ...

    def close(self) -> None:
        """Ends the run."""
        ...


class WeightsAndBiases:
    """Weights & Biases."""

    name = "wandb"

    def start(self, directory: str, config: Mapping[str, Any], id_: str) -> str:
        """Begins a run, or goes on with one; see `Tracker`."""
        local = {} if files.is_remote(directory) else {"dir": directory}
        options: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", _PROJECT), **local}
        if id_:
            options |= {"id": id_, "resume": "allow"}
        sys.argv[1:] = map(hide_secrets, sys.argv[1:])  # which W&B uploads, too
        self._run = wandb.init(name=files.name(directory), config=dict(config), **options)
        return self._run.id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs metrics; see `Tracker`."""
        self._run.log(dict(values), step=step)

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Logs a table; see `Tracker`."""
        self._run.log({tag: wandb.Table(columns=list(header), data=[list(row) for row in rows])}, step=step)

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Logs a picture; see `Tracker`."""
        self._run.log({tag: wandb.Image(Image.open(io.BytesIO(png)))}, step=step)

    def close(self) -> None:
        """Ends the run."""
        self._run.finish()


class MLflow:
    """MLflow."""

    name = "mlflow"

    def start(self, directory: str, config: Mapping[str, Any], id_: str) -> str:
        """Begins a run, or goes on with one; see `Tracker`."""
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        run = mlflow.start_run(run_id=id_ or None, run_name=files.name(directory))
        if not id_:
            fields = [(name, str(value)[:_LONGEST]) for name, value in config_fields.flatten(config)]
            for begin in range(0, len(fields), _AT_A_TIME):
                mlflow.log_params(dict(fields[begin : begin + _AT_A_TIME]))
        return run.info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs metrics; see `Tracker`."""
        mlflow.log_metrics(dict(values), step=step)

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Logs a table as the artifact TAG/STEP.md; see `Tracker`."""
        mlflow.log_text(markdown.table_of_texts(header, rows) + "\n", f"{tag}/{step}.md")

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Logs a picture; see `Tracker`."""
        mlflow.log_image(Image.open(io.BytesIO(png)), key=tag, step=step)

    def close(self) -> None:
        """Ends the run."""
        mlflow.end_run()


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (WeightsAndBiases, MLflow)}


def parse(names: str) -> list[str]:
    """Returns the names in a comma-separated list.

    Raises:
        UserError: one is empty or unknown, or its package is not installed.
    """
    found = comma_lists.names(names, "trackers")
    for name in found:
        if name not in TRACKERS:
            known = alternatives(TRACKERS)
            raise UserError(f"trackers={names}: expected {known}, or both with a comma between")
        check_installed(name, "trackers", f"trackers={names}")
    return found


class Trackers:
    """The trackers of a run.

    Args:
        names: comma-separated names.
        directory: the work directory.
        config: the configuration of the run, nested.
        warn: called with one line if a tracker fails.
    """

    def __init__(self, names: str, directory: str, config: Mapping[str, Any], warn: Callable[[str], None]):
        self._directory, self._config, self._warn = directory, hide_secrets(config), warn
        self._waiting = [TRACKERS[name]() for name in parse(names)]
        self._open: list[Tracker] = []  # whose runs have begun

    def start(self) -> None:
        """Begins the runs of all trackers, which have begun already if the run goes back to a step."""
        if self._open:
            self._warn(
                "warning: the trackers keep what they have of the steps that come again; MLflow adds the new "
                "values, and W&B leaves them out"
            )
        else:
            self._open, self._waiting = self._waiting, []
            self._for_each(self._start)

    def _start(self, tracker: Tracker) -> None:
        path = os.path.join(self._directory, f"{tracker.name}-run.txt")
        before = files.read_text(path).strip() if files.exists(path) else ""
        found = tracker.start(self._directory, self._config, before)
        if found != before:
            atomic.write_text(path, f"{found}\n")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Logs metrics; values that are not finite are left out."""
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        self._for_each(lambda tracker: tracker.write(step, finite))

    def write_table(self, step: int, tag: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Logs a table; see `Tracker`."""
        self._for_each(lambda tracker: tracker.write_table(step, tag, header, rows))

    def write_image(self, step: int, tag: str, png: bytes) -> None:
        """Logs a picture; see `Tracker`."""
        self._for_each(lambda tracker: tracker.write_image(step, tag, png))

    def close(self) -> None:
        """Ends the runs."""
        self._for_each(lambda tracker: tracker.close())
        self._open = []

    def _for_each(self, function: Callable[[Tracker], Any]) -> None:
        """Calls a function with each tracker; one that fails is left out from then on."""
        for tracker in list(self._open):
            try:
                function(tracker)
            except Exception as error:
                self._open.remove(tracker)
                self._warn(f"warning: {tracker.name} fails and is left out: {first_line(error)}")
