"""Times the train steps of arms, and calculates how many of them fit into a budget.

A budget of seconds is converted to a number of steps before the first run: the steps of all arms are timed in
turn, on the machine and with the records of the experiment. The runs count steps. They therefore resume
exactly, their schedules and ramps are functions of the step, and other load on the machine favors no arm.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import ml_collections

from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files, json_files
from bert_jax.io.wording import counted
from bert_jax.runs import pretrain
from bert_jax.settings.experiments import TIMING, Budget
from bert_jax.settings.typed import pretrain_config
from bert_jax.training.evaluators import Evaluator
from bert_jax.training.metrics.metrics_writer import read_metrics

FILE = "step_times.json"
TIMED_STEPS = 1000  # steps of the timed configuration, enough for all parts of a ramp
_ROUNDS = 2  # how often each kind of step is timed, in turn with the others; the shortest time counts
_LOG_EVERY, _LINES = 8, 4  # lines of metrics; the first one contains the warm-up
_MOST_STEPS = 10**8

MakeConfig = Callable[[int], ml_collections.ConfigDict]


class Kind(NamedTuple):
    """The properties of a train step on which its duration depends within a run.

    Attributes:
        rows: rows of the batch.
        length: tokens per row; 0 if the run has one length.
        causal: whether the step predicts the next token.
    """

    rows: int
    length: int
    causal: bool


def count_kinds(config: ml_collections.ConfigDict) -> Counter[Kind]:
    """Returns the number of steps of each kind in a run of pre-training."""
    typed = pretrain_config.pretraining(config)
    causal = typed.causal_steps
    starts = {*typed.batch_sizes.starts, causal}
    ends = sorted({start for start in starts if start < typed.steps} | {typed.steps})
    found: Counter[Kind] = Counter()
    for start, end in itertools.pairwise(ends):
        found[Kind(typed.batch_sizes.at(start), 0, start < causal)] += end - start
    return found


def steps_within(budget: Budget, make: MakeConfig, spent: Callable[[Kind], float]) -> int:
    """Returns the largest number of steps whose cost is within a budget, at least 1.

    Args:
        budget: the budget; for one of steps, `spent` is not called.
        make: function (steps) that returns the configuration of a run with this number of steps.
        spent: function (kind) that returns the seconds or the tokens of a step of a kind.

    Raises:
        UserError: the configuration is not valid, or is not for so few steps as are within the budget.
    """
    if budget.steps:
        return budget.steps
    most = budget.seconds or budget.tokens

    def cost(steps: int) -> float:
        return sum(count * spent(kind) for kind, count in count_kinds(make(steps)).items())

    def is_low(steps: int) -> bool:
        try:
            return cost(steps) <= most
        except UserError:  # shares of so few steps are the same step
            return True

    if cost(TIMED_STEPS) <= most:
        low, high = TIMED_STEPS, 2 * TIMED_STEPS
        while high < _MOST_STEPS and cost(high) <= most:
            low, high = high, 2 * high
    else:
        low, high = 1, TIMED_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_low(middle) else (low, middle)
    try:
        cost(low)
    except UserError as error:
        unit = "seconds" if budget.seconds else "tokens"
        raise UserError(
            f"a budget of {most:,} {unit} is less than {counted(high, 'step')} of the arm, and fewer are "
            f"refused: {error}; give more --{unit}"
        ) from None
    return low


def tokens_of(kind: Kind, manifests_by_length: Mapping[int, Mapping]) -> float:
    """Returns the mean number of tokens, without padding, of a step.

    Args:
        kind: the kind of the step.
        manifests_by_length: the manifests of the records, by the length of their rows.
    """
    length = kind.length or max(manifests_by_length)
    split = manifests_by_length[length]["splits"]["train"]
    return kind.rows * split["tokens"] / split["rows"]


def read_manifests(directories: str) -> dict[int, Mapping]:
    """Returns the manifests of comma-separated directories of records, by the length of their rows."""
    found = list(map(manifests.read, comma_lists.paths(directories)))
    return {manifest["max_seq_length"]: manifest for manifest in found}


class TimedArm(NamedTuple):
    """An arm whose steps are timed.

    Attributes:
        name: its name.
        config: the configuration of a run in which all of its kinds of steps occur.
        explicit: see `pretrain.pretrain`.
    """

    name: str
    config: ml_collections.ConfigDict
    explicit: Collection[str] = ()


class StepTimes:
    """The measured durations of train steps, stored in a file.

    Args:
        directory: the directory of the experiment.
        log: called with lines of progress.
    """

    def __init__(self, directory: str, log: Callable[[str], None]):
        self._directory, self._log = directory, log
        self._path = os.path.join(directory, FILE)
        stored = json_files.read(self._path, {str: {str: float}}) if files.exists(self._path) else {}
        self._seconds: dict[str, dict[str, float]] = stored

    def seconds(self, arm: str, kind: Kind) -> float:
        """Returns the seconds of a step of an arm that `measure` has timed."""
        return self._seconds[arm][_name(kind)]

    def forget(self, arm: str) -> None:
        """Removes the times of an arm, if there are any, and writes the file."""
        if self._seconds.pop(arm, None) is not None:
            self._log(f"{arm}: its settings have changed since its steps were timed; they are timed again")
            self._write()

    def measure(self, *arms: TimedArm) -> None:
        """Times the steps of arms in turn, except those that have been timed before."""
        wanted = {
            (arm.name, kind): (_only(arm.config, kind), arm.explicit)
            for arm in arms
            for kind in count_kinds(arm.config)
            if _name(kind) not in self._seconds.get(arm.name, {})
        }
        best: dict[tuple[str, Kind], float] = {}
        for _ in range(_ROUNDS):
            for (arm, kind), (config, explicit) in wanted.items():
                took = self._time(arm, config, explicit)
                best[arm, kind] = min(took, best.get((arm, kind), took))
        for (arm, kind), took in best.items():
            self._seconds.setdefault(arm, {})[_name(kind)] = took
            self._log(f"{arm}: {took:.3f} s for a step of {_name(kind)}")
        if best:
            self._write()

    def _write(self) -> None:
        json_files.write(self._path, self._seconds)

    def _time(self, arm: str, config: ml_collections.ConfigDict, explicit: Collection[str]) -> float:
        scratch = os.path.join(self._directory, TIMING)
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()):
            stop = _StopAt(_LOG_EVERY * _LINES)
            pretrain.pretrain(config, scratch, explicit=explicit, evaluators=[stop])
        rows = read_metrics(scratch, "train")[1:]
        found = [row["step_seconds_p50"] for row in rows if "step_seconds_p50" in row]
        shutil.rmtree(scratch, ignore_errors=True)
        if not found:
            raise UserError(f"{arm}: its steps could not be timed; give --steps or --tokens, not --seconds")
        return min(found)


class _StopAt(Evaluator):
    """Ends a run after a number of steps."""

    name = "timing"

    def __init__(self, step: int):
        self.every, self._ends = step, False

    def evaluate(self, step, state, context):
        """Returns no metrics."""
        self._ends = True
        return {}

    def should_stop(self, step: int) -> bool:
        """Returns whether the run has reached the step."""
        return self._ends


def _only(config: ml_collections.ConfigDict, kind: Kind) -> ml_collections.ConfigDict:
    """Returns the configuration of a run with one kind of step."""
    config = ml_collections.ConfigDict(config.to_dict())
    config.batch_size, config.batch_ramp = kind.rows, ""
    if "causal_steps" in config:
        config.causal_steps = config.steps - 1 if kind.causal else 0
    config.checkpoint.every, config.eval.every, config.log_every = 0, 0, _LOG_EVERY
    return config


def _name(kind: Kind) -> str:
    length = f" of {kind.length} tokens" if kind.length else ""
    return f"{counted(kind.rows, 'row')}{length}{', left to right' if kind.causal else ''}"


def spent_by_step(directory: str) -> tuple[list[int], list[float], list[float]]:
    """Returns the cost of a run until each line of its metrics, resumptions included.

    Returns:
        The steps of the lines, the seconds of all train steps until then, and the tokens.
    """
    steps, seconds, tokens = [0], [0.0], [0.0]
    for line in read_metrics(directory, "train"):
        took = (line["step"] - steps[-1]) / line["steps_per_second"]
        steps.append(line["step"])
        seconds.append(seconds[-1] + took)
        tokens.append(tokens[-1] + took * line["tokens_per_second"])
    return steps[1:], seconds[1:], tokens[1:]
