"""Runs the arms of an experiment, one after the other, and stores every result in a file.

The directory of an experiment contains results.json, the settings that they were computed with, and a folder
for each arm and seed with the work directories of its runs. A killed run resumes, measures with a result are
not repeated, and further seeds or arms add theirs, provided that the settings are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.inference import held_out, minimal_pairs
from bert_jax.io import files, json_files
from bert_jax.io.wording import counted
from bert_jax.runs import finetune, pretrain
from bert_jax.runs.experiment import finetunings, settings, step_times
from bert_jax.runs.experiment.results import Results
from bert_jax.runs.experiment.settings import RecordedSettings, Settings
from bert_jax.runs.experiment.step_times import StepTimes, TimedArm, spent_by_step
from bert_jax.settings.experiment_names import folder_name
from bert_jax.settings.experiments import (
    PRETRAINING,
    TIMING,
    Arm,
    Experiment,
    Finetuning,
    HeldOut,
    Measure,
    MinimalPairs,
    Run,
)
from bert_jax.workdir.lock import Lock

EXPERIMENT_FILE = "experiment.json"

_CHECKPOINTS, _LINES, _EVALUATIONS = 8, 50, 10  # of a pre-training
_EVALUATION_BATCHES = 32
_HELD_OUT = ("mlm_loss", "mlm_accuracy", "clm_loss", "clm_accuracy", "nsp_accuracy")


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The inputs of an experiment.

    Attributes:
        records: directories of records by their names in `Experiment.records`.
        data: folders with the data of fine-tunings, by name.
        checkpoint: the checkpoint that arms start from; "" for none.
    """

    records: Mapping[str, str] = dataclasses.field(default_factory=dict)
    data: Mapping[str, str] = dataclasses.field(default_factory=dict)
    checkpoint: str = ""


class Runner:
    """Runs an experiment in a directory.

    Args:
        experiment: the experiment, with the budget and the number of seeds to run.
        directory: its directory, a new one or one to resume.
        inputs: its inputs.
        log: called with lines of progress.
        runs: whether it will run arms; without, it needs no inputs, and the directory has to exist.

    Raises:
        UserError: an input is missing, or the directory belongs to another experiment.
    """

    def __init__(
        self,
        experiment: Experiment,
        directory: str,
        inputs: Inputs,
        log: Callable[[str], None] = print,
        runs: bool = True,
    ):
        self.experiment, self.directory, self._inputs = experiment, directory, inputs
        self._log = log
        if runs:
            self._check_inputs()
        self._claim(runs)
        self._lock = Lock(directory, log=log)
        self._holds = False
        self._read()

    def _read(self) -> None:
        """Reads what earlier runs have stored."""
        self.results = Results(self.directory)
        self._recorded = RecordedSettings(self.directory)
        self._times = StepTimes(self.directory, self._log)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the directory during the block, so that no other runner loses the results of this one.

        Raises:
            UserError: another runner holds the directory, or it cannot be written.
        """
        if self._holds:
            yield
            return
        self._lock.acquire()
        self._holds = True
        try:
            self._read()  # another runner may have added results before it released the directory
            yield
        finally:
            self._holds = False
            self._lock.release()

    def run(self, arms: Sequence[str] = ()) -> None:
        """Runs the arms that have no results yet: all with the first seed, then all with the second one.

        Args:
            arms: names of the arms to run; all by default. An arm that another one starts from has to be
                among them, or to have run.

        Raises:
            UserError: an arm or a measure with results has other settings by now, an arm needs the model of
                one that has not run, or another runner holds the directory.
        """
        chosen = [arm for arm in self.experiment.arms if not arms or arm.name in arms]
        with self.held():
            self._check_settings()
            for seed in range(self.experiment.seeds):
                for arm in chosen:
                    self._run_arm(arm, seed)

    def model(self, arm: str, seed: int) -> str:
        """Returns the model that the fine-tunings of an arm start with: a work directory, or --model."""
        found = self.experiment.arm(arm)
        if found.pretrain:
            return os.path.join(self._folder(arm, seed), PRETRAINING)
        return self.model(found.start, seed) if found.start else self._inputs.checkpoint

    def has_model(self, arm: str, seed: int) -> bool:
        """Returns whether the model of an arm is trained."""
        found = self.experiment.arm(arm)
        if found.pretrain:
            return self.results.get(arm, seed, PRETRAINING) is not None
        return self.has_model(found.start, seed) if found.start else True

    # Before the first run

    def _check_inputs(self) -> None:
        experiment, inputs = self.experiment, self._inputs
        if missing := [name for name in experiment.records if name not in inputs.records]:
            raise UserError(
                f"no records called {', '.join(missing)}; give --input=FILES, text to make them of"
            )
        if experiment.needs_checkpoint and not inputs.checkpoint:
            raise UserError("the experiment starts from a trained model; give --model=DIR")
        for name in experiment.data_names():
            if name not in inputs.data:
                raise UserError(
                    f"the experiment is judged by fine-tuning on {name}; give --data={name}=DIR, the folder "
                    f"with its files, or leave such measures out by --measures"
                )
        for arm in experiment.arms:
            for measure in experiment.measures_of(arm):
                if isinstance(measure, Finetuning):
                    finetunings.check(measure, self._finetuning_config(measure, arm))

    def _claim(self, runs: bool) -> None:
        """Raises UserError if the directory belongs to an experiment with another budget or other records."""
        experiment = self.experiment
        described: dict[str, Any] = {
            "title": experiment.title,
            "budget": dataclasses.asdict(experiment.budget) if experiment.budget else {},
            "vocabulary": list(experiment.vocabulary or ()),
            "records": {name: list(flags) for name, flags in experiment.records.items()},
            "checkpoint": self._inputs.checkpoint,
        }
        if experiment.train_rows:
            described["train_rows"] = experiment.train_rows
        path = os.path.join(self.directory, EXPERIMENT_FILE)
        if not runs and not files.exists(path):
            raise UserError(
                f"--workdir={self.directory} holds no experiment yet; leave out --table to run it"
            )
        if not files.exists(path):
            files.make_directory(self.directory)
            json_files.write(path, described)
            return
        before = json_files.read(path, dict)
        if not runs:
            described["checkpoint"] = before.get("checkpoint")
        for name in {**before, **described}:
            if before.get(name) != described.get(name):
                raise UserError(
                    f"--workdir={self.directory} holds an experiment with the {name} {before.get(name)!r}, "
                    f"and this one has {described.get(name)!r}; choose another --workdir"
                )

    # The settings of results

    def _check_settings(self) -> None:
        """Raises UserError if the settings of results differ from those of the experiment."""
        for arm in self.experiment.arms:
            names = [measure.name for measure in self.experiment.measures_of(arm)]
            for name in (PRETRAINING, *names) if arm.pretrain else names:
                if self._has_settings(arm, name):
                    with contextlib.suppress(_NotYet):  # the result of another arm that it needs was removed
                        self._recorded.check(arm.name, name, self._settings(arm, name))

    def _record_settings(self, arm: Arm, measure: str) -> None:
        """Records the settings of a measure before its first result."""
        if not self._has_settings(arm, measure):
            self._recorded.add(arm.name, measure, self._settings(arm, measure))

    def _has_settings(self, arm: Arm, measure: str) -> bool:
        return self.results.has(arm.name, measure) and self._recorded.has(arm.name, measure)

    def _settings(self, arm: Arm, name: str) -> Settings:
        """Returns the settings of a measure, or of the pre-training, which are the same for all seeds."""
        if name == PRETRAINING:
            assert arm.pretrain is not None
            found = settings.of_pretraining(arm.pretrain, self._timed_config(arm, 0))
        else:
            measure = next(one for one in self.experiment.measures if one.name == name)
            if isinstance(measure, Finetuning):
                config = self._finetuning_config(measure, arm, init_from=self.model(arm.name, 0))
                found = settings.of_finetuning(config, dict(finetunings.split_files(config)))
            elif isinstance(measure, HeldOut):
                found = settings.of_held_out(measure, self._inputs.records[measure.records])
            else:
                found = settings.of_measure(measure)
        return found.relative_to(self.directory)

    # An arm

    def _run_arm(self, arm: Arm, seed: int) -> None:
        if arm.pretrain and self.results.get(arm.name, seed, PRETRAINING) is None:
            try:
                self._pretrain(arm, seed)
            except _NotYet as error:
                raise _not_run(arm.name, "needs the model of", str(error)) from None
        for measure in self.experiment.measures_of(arm):
            if self.results.get(arm.name, seed, measure.name) is None:
                if not self.has_model(arm.name, seed):
                    raise _not_run(arm.name, "starts from", arm.start)
                self._log(f"{arm.name}, seed {seed}: {measure.name}")
                self._record_settings(arm, measure.name)
                scores = self._judge(measure, arm, seed)
                self._add(arm, seed, measure.name, scores)
                self._log(f"{arm.name}, seed {seed}: {measure.name}: {_listed(scores)}")
            if isinstance(measure, Finetuning):
                self._remove_weights(measure, arm, seed)

    def _add(self, arm: Arm, seed: int, measure: str, scores: Mapping[str, float]) -> None:
        """Adds a result, unless another host has taken over the directory."""
        self._lock.check()
        self.results.add(arm.name, seed, measure, scores)

    def _folder(self, arm: str, seed: int) -> str:
        return os.path.join(self.directory, folder_name(arm), f"seed-{seed}")

    def _pretrain(self, arm: Arm, seed: int) -> None:
        self._timed_config(arm, seed)  # before steps are timed, it says what it lacks
        self._record_settings(arm, PRETRAINING)
        assert arm.pretrain is not None
        steps = self._steps(arm, seed)
        config = self._pretraining_config(arm, seed, steps)
        self._log(f"{arm.name}, seed {seed}: pre-training, {counted(steps, 'step')}")
        directory = os.path.join(self._folder(arm.name, seed), PRETRAINING)
        pretrain.pretrain(config, directory, explicit=arm.pretrain.explicit_fields)
        _, seconds, tokens = spent_by_step(directory)
        scores = {"steps": steps, "tokens": tokens[-1], "wall_seconds": seconds[-1]}
        with contextlib.suppress(KeyError):  # a budget of steps or tokens needs no times
            scores["seconds"] = sum(
                count * self._times.seconds(arm.name, kind)
                for kind, count in step_times.count_kinds(config).items()
            )
        self._add(arm, seed, PRETRAINING, scores)

    def _pretraining_config(self, arm: Arm, seed: int, steps: int) -> ml_collections.ConfigDict:
        """Returns the configuration of an arm's pre-training."""
        assert arm.pretrain is not None

        def model(name: str) -> str:
            if not self.has_model(name, seed):
                raise _NotYet(name)
            return self.model(name, seed)

        config = arm.pretrain.config(Run(steps, seed, self._inputs.checkpoint, model))
        config.steps, config.seed = steps, seed
        config.data.dir = ",".join(self._inputs.records[name] for name in arm.pretrain.records.split(","))
        config.checkpoint.every, config.checkpoint.keep = max(1, steps // _CHECKPOINTS), 1
        config.log_every = max(1, steps // _LINES)
        config.eval.every = max(1, steps // _EVALUATIONS)
        config.eval.batches = config.eval.batches or _EVALUATION_BATCHES
        return config

    def _timed_config(self, arm: Arm, seed: int) -> ml_collections.ConfigDict:
        """Returns the configuration of an arm's pre-training whose steps are timed."""
        return self._pretraining_config(arm, seed, step_times.TIMED_STEPS)

    def _steps(self, arm: Arm, seed: int) -> int:
        """Returns the number of steps of an arm that fit into its budget."""
        budget = self.experiment.budget
        assert budget is not None and arm.pretrain is not None
        budget = budget.part(arm.pretrain.share)
        if budget.seconds:
            self._forget_old_times()
            self._times.measure(*self._timed(seed))
        known = step_times.read_manifests(self._timed_config(arm, seed).data.dir)

        def spent(kind: step_times.Kind) -> float:
            if budget.seconds:
                return self._times.seconds(arm.name, kind)
            return step_times.tokens_of(kind, known)

        return step_times.steps_within(budget, lambda n: self._pretraining_config(arm, seed, n), spent)

    def _forget_old_times(self) -> None:
        """Forgets the times of arms whose settings have changed since, as those without results may."""
        for arm in self.experiment.arms:
            if arm.pretrain:
                with contextlib.suppress(_NotYet):
                    now, known = self._settings(arm, PRETRAINING), self._recorded.has(arm.name, TIMING)
                    if known and self._recorded.changes(arm.name, TIMING, now):
                        self._times.forget(arm.name)
                        known = False
                    if not known:
                        self._recorded.add(arm.name, TIMING, now)

    def _timed(self, seed: int) -> Iterator[TimedArm]:
        """Yields each arm that can be timed; those with untrained teachers cannot."""
        for arm in self.experiment.arms:
            if arm.pretrain:
                with contextlib.suppress(_NotYet):
                    config = self._timed_config(arm, seed)
                    yield TimedArm(arm.name, config, arm.pretrain.explicit_fields)

    # Measures

    def _judge(self, measure: Measure, arm: Arm, seed: int) -> dict[str, float]:
        if isinstance(measure, Finetuning):
            return self._finetune(measure, arm, seed)
        if isinstance(measure, MinimalPairs):
            return self._minimal_pairs(arm, seed)
        found = held_out.held_out(
            self.model(arm.name, seed),
            self._inputs.records[measure.records],
            prob=measure.prob,
            replace=measure.replace,
            rows=measure.rows,
            log=lambda line: None,
        )
        return {name: found[name] for name in _HELD_OUT if name in found}

    def _minimal_pairs(self, arm: Arm, seed: int) -> dict[str, float]:
        scorer = minimal_pairs.SentenceScorer(self.model(arm.name, seed), lambda line: None)
        summary = minimal_pairs.evaluate(scorer, minimal_pairs.generate()).summary()
        return {name: row["accuracy"] for name, row in summary.items()}

    def _finetuning_config(self, measure: Finetuning, arm: Arm, **values: Any) -> ml_collections.ConfigDict:
        folder = self._inputs.data[measure.data] if measure.data else ""
        return finetunings.config_of(measure, arm, folder, **values)

    def _finetune(self, measure: Finetuning, arm: Arm, seed: int) -> dict[str, float]:
        """Returns the scores of a fine-tuned model."""
        config = self._finetuning_config(measure, arm, init_from=self.model(arm.name, seed), seed=seed)
        if limits := [rows for rows in (config.train_rows, self.experiment.train_rows) if rows]:
            config.train_rows = min(limits)
        scores = finetune.finetune(config, self._finetuned(measure, arm, seed))["scores"]
        return finetunings.scores_of(measure, scores)

    def _finetuned(self, measure: Finetuning, arm: Arm, seed: int) -> str:
        """Returns the work directory of a fine-tuning."""
        return os.path.join(self._folder(arm.name, seed), folder_name(measure.name))

    def _remove_weights(self, measure: Finetuning, arm: Arm, seed: int) -> None:
        """Removes the weights of a fine-tuning, which cannot resume without them: its result is recorded."""
        for name in ("checkpoints", "best"):
            shutil.rmtree(os.path.join(self._finetuned(measure, arm, seed), name), ignore_errors=True)


class _NotYet(Exception):
    """The model of an arm is needed before it is trained."""


def _not_run(arm: str, needs: str, other: str) -> UserError:
    return UserError(f"arm {arm!r} {needs} {other!r}, which has not run; add it to --arms")


def _listed(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
