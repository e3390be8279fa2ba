"""Experiments: variants of one run that are trained and evaluated alike, and compared in one table.

A file in configs/experiments/ defines `get_experiment()`, which returns an `Experiment` of several arms;
`bert-jax sweep` runs it. The directory of an experiment contains:

experiment.json   its budget, records and checkpoint
results.json      every score
settings.json     the settings of each arm and measure with results, which must stay the same
step_times.json   with a budget of seconds, the seconds of a step of each arm
ARM/seed-N/       the work directories of the pre-training and of the fine-tunings of an arm
README.md         the table; scores.png and curves.png are the plots
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import ml_collections
import numpy as np
from scipy import stats

from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.inference import held_out, minimal_pairs
from bert_jax.io import atomic, checks, comma_lists, files, json_files, markdown
from bert_jax.io.wording import counted
from bert_jax.plots import curves
from bert_jax.runs import finetune, pretrain
from bert_jax.settings import config_fields, config_files, pretrain_config
from bert_jax.settings.config_fields import Field
from bert_jax.tasks import fields, metrics, registry, table
from bert_jax.tasks.setup import split_file
from bert_jax.training.evaluators import Evaluator
from bert_jax.training.metrics import read_metrics
from bert_jax.workdir.lock import Lock

EVERY = "*"  # in `Arm.tune`: all fine-tunings
PRETRAINING, TIMING = "pretraining", "timing"  # used like names of measures
SST_2 = "SST-2, 10,000 rows"  # of 67,349, which makes it about as expensive as the other tasks

_TIMED_STEPS = 1000  # steps of the run whose mean cost of a step is measured
_CHECKPOINTS, _LINES, _EVALUATIONS, _EVALUATION_BATCHES = 8, 50, 10, 32  # of a pre-training
_SIGNIFICANCE = 0.05  # level of Welch's two-sided t-test
_OF_A_RUN = ("seed", "steps")  # fields that differ between the runs of an arm

# {task: (config, argument of finetune/hour, name of its data, metric)}
_TASKS = {
    "CoLA": ("finetune/glue:cola", "cola", "glue", "matthews"),
    "SST-2": ("finetune/glue:sst2", "sst2", "glue", "accuracy"),
    "MRPC": ("finetune/glue:mrpc", "mrpc", "glue", "f1"),
    "STS-B": ("finetune/glue:stsb", "stsb", "glue", "pearson"),
    "RTE": ("finetune/glue:rte", "rte", "glue", "accuracy"),
    "SQuAD": ("finetune/squad:v1", "squad", "squad", "f1"),
    "CoNLL-2003": ("finetune/conll", "conll", "conll", "f1"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """The arguments of a function that returns the configuration of a pre-training run.

    Attributes:
        steps: number of steps that fit into the budget.
        seed: seed of the run.
        checkpoint: the value of --model.
        model: function (arm) that returns the work directory of an earlier arm's pre-training with this seed.
    """

    steps: int
    seed: int
    checkpoint: str
    model: Callable[[str], str]

    def share(self, fraction: float) -> int:
        """Returns a fraction of the steps, rounded, and at least 1."""
        return max(1, round(fraction * self.steps))


@dataclasses.dataclass(frozen=True)
class ArmConfig:
    """A function (run) that returns a config by name with some fields changed."""

    name: str
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, run: Run) -> ml_collections.ConfigDict:
        """Returns the config."""
        loaded = config_files.load(self.name)
        loaded.update_from_flattened_dict(self.fields)
        return loaded

    @property
    def explicit(self) -> tuple[str, ...]:
        """Returns the fields of `config.model` that are changed."""
        return tuple(name.removeprefix("model.") for name in self.fields if name.startswith("model."))


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How an arm is pre-trained.

    Attributes:
        config: function (run) that returns the configuration. The runner sets its steps, seed and records,
            and the intervals at which the run is logged, saved and evaluated.
        records: name of its records in `Experiment.records`.
        share: fraction of the budget that it may spend.
        explicit: fields of `config.model` that a model which starts from `init_from` keeps; None for those
            that an `ArmConfig` changes.
    """

    config: Callable[[Run], ml_collections.ConfigDict]
    records: str
    share: float = 1.0
    explicit: Collection[str] | None = None

    @property
    def explicit_fields(self) -> Collection[str]:
        """Returns the names of the fields of `config.model` that are kept."""
        return getattr(self.config, "explicit", ()) if self.explicit is None else self.explicit


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the variants that an experiment compares.

    Attributes:
        name: name in tables and of its folder.
        pretrain: its pre-training; None for an arm that starts from the model of another arm or --model.
        start: without `pretrain`, the arm whose model it starts from; "" for --model.
        tune: fields of fine-tunings to change in this arm, by the name of the measure or `EVERY`.
        measures: names of the measures that are taken of it; None for all.
    """

    name: str
    pretrain: Pretraining | None = None
    start: str = ""
    tune: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] | None = None

    def fields(self, measure: str) -> dict[str, Any]:
        """Returns the fields of a fine-tuning to change in this arm."""
        return {**self.tune.get(EVERY, {}), **self.tune.get(measure, {})}


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The losses and accuracies of pre-training on held-out records, with equal masks for all arms.

    Attributes:
        name: name of the measure.
        records: name of the records in `Experiment.records`.
        prob: fraction of the tokens to predict.
        replace: as `masking.replace`.
        rows: number of rows to read; 0 for all.
    """

    name: str
    records: str
    prob: float = 0.15
    replace: str = "0.8,0.1,0.1"
    rows: int = 2000


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
    """The fraction of minimal pairs in which the grammatical sentence is more probable."""

    name: str = "minimal pairs"


@dataclasses.dataclass(frozen=True)
class Finetuning:
    """The scores of a fine-tuned model.

    Attributes:
        name: name of the measure.
        config: name of a config of fine-tuning, such as "finetune/glue:stsb".
        data: name of the folder with its data, as in --data=NAME=DIR; "" if the config names the files.
        metrics: the metrics to report.
        fields: fields of the config to change, by their dotted names.
    """

    name: str
    config: str
    data: str
    metrics: Sequence[str]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Measure = HeldOut | MinimalPairs | Finetuning


def finetuning(task: str, rate: float, fields: Mapping[str, Any] = {}, name: str = "") -> Finetuning:
    """Returns the fine-tuning on a known task, for three epochs.

    Adam has bias correction, and the learning rate decays from the end of warm-up: so fewer runs fail.

    Args:
        task: "CoLA", "SST-2" (its first 10,000 rows), "MRPC", "STS-B", "RTE", "SQuAD" or "CoNLL-2003".
        rate: peak learning rate.
        fields: further fields to change, by their dotted names.
        name: name of the measure; "" for that of the task.
    """
    common = {"optimizer.name": "adamw_bias_corrected", "optimizer.schedule": "warmup_then_decay"}
    changed = {**common, "optimizer.learning_rate": rate, "epochs": 3.0, **fields}
    return _finetuning(task, _TASKS[task][0], changed, name)


def finetuning_small(task: str, fields: Mapping[str, Any] = {}) -> Finetuning:
    """Returns the fine-tuning on a known task as in finetune/hour, for small models."""
    return _finetuning(task, f"finetune/hour:{_TASKS[task][1]}", fields)


def _finetuning(task: str, config: str, fields: Mapping[str, Any], name: str = "") -> Finetuning:
    few = {"train_rows": 10_000} if task == "SST-2" else {}
    _, _, data, metric = _TASKS[task]
    return Finetuning(name or (SST_2 if few else task), config, data, (metric,), {**few, **fields})


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Published scores of arms, to be compared with the scores found here.

    Attributes:
        name: name of the published metric or task.
        published: scores by the names of arms. Larger ones are better: negate losses.
        measures: names of the corresponding measures here; the scores of a run are averaged over them.
        metric: metric to compare; "" for the first metric of each measure.
    """

    name: str
    published: Mapping[str, float]
    measures: Sequence[str]
    metric: str = ""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long an arm is pre-trained: steps, tokens without padding, or seconds of train steps.

    Seconds are converted to steps before the first run: the steps of all arms are timed in turn. The runs
    count steps. They therefore resume exactly, and other load on the machine favors no arm.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self):
        given = [self.steps, self.tokens, self.seconds]
        if sum(map(bool, given)) != 1 or not 0 < max(given) < np.inf:
            raise UserError(
                f"a budget of steps={self.steps}, tokens={self.tokens} and seconds={self.seconds:g}: "
                "expected one of the three to be more than 0"
            )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: title of tables and plots.
        arms: the arms, in the order in which they run; an arm comes after the one that it starts from.
        measures: the measures taken of all arms.
        budget: the budget of pre-training; None if no arm is pre-trained.
        seeds: number of runs of each arm.
        train_rows: number of rows, at most, that a fine-tuning trains on; 0 for no limit.
        vocabulary: flags of `bert-jax vocab`; None for the vocabulary of --model.
        records: flags of `bert-jax data`, by name.
        comparisons: published scores of the arms.
        published: Markdown with the published figures and how they were obtained, for the end of the table.
    """

    title: str
    arms: Sequence[Arm]
    measures: Sequence[Measure]
    budget: Budget | None = None
    seeds: int = 3
    train_rows: int = 0
    vocabulary: Sequence[str] | None = None
    records: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    published: str = ""

    def __post_init__(self):
        arms, measures = [arm.name for arm in self.arms], [one.name for one in self.measures]
        for names in ([*arms, TIMING], [*measures, PRETRAINING, TIMING]):
            if len({*map(_folder_name, names)}) < len(names):
                raise UserError(f"an experiment with {', '.join(names)}: expected different names")
        for number, arm in enumerate(self.arms):
            check_known(f"arm {arm.name!r}: start", [arm.start] if arm.start else [], arms[:number])
            named = [name for name in (*arm.tune, *(arm.measures or ())) if name != EVERY]
            check_known(f"arm {arm.name!r}: measure", named, measures)
        for one in self.comparisons:
            check_known(f"comparison {one.name!r}:", [*one.published, *one.measures], [*arms, *measures])
        used = [arm.pretrain.records for arm in self.arms if arm.pretrain]
        used += [one.records for one in self.measures if isinstance(one, HeldOut)]
        check_known("records", used, list(self.records))
        if any(arm.pretrain for arm in self.arms) != bool(self.budget):
            raise UserError("an experiment has a budget if and only if one of its arms is pre-trained")

    def arm(self, name: str) -> Arm:
        """Returns the arm with this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def measures_of(self, arm: Arm) -> list[Measure]:
        """Returns the measures that are taken of an arm."""
        return [one for one in self.measures if arm.measures is None or one.name in arm.measures]

    def with_measures(self, measures: Sequence[Measure]) -> Experiment:
        """Returns the experiment with only some of its measures."""
        names = {one.name for one in measures}
        arms = [
            dataclasses.replace(
                arm,
                tune={name: x for name, x in arm.tune.items() if name in (EVERY, *names)},
                measures=None if arm.measures is None else [x for x in arm.measures if x in names],
            )
            for arm in self.arms
        ]
        comparisons = [one for one in self.comparisons if {*one.measures} <= names]
        return dataclasses.replace(self, arms=arms, measures=measures, comparisons=comparisons)

    @property
    def needs_checkpoint(self) -> bool:
        """Returns whether an arm starts from --model, or the vocabulary is that of --model."""
        takes = any(not (arm.pretrain or arm.start) for arm in self.arms)
        return takes or (self.vocabulary is None and bool(self.records))

    def records_of(self, arms: Sequence[str] = ()) -> list[str]:
        """Returns the names of the records that some arms need, or that all do if none is named.

        A budget of seconds is converted to steps by timing all arms, and therefore needs the records of all.
        """
        everything = not arms or (self.budget is not None and bool(self.budget.seconds))
        needed: set[str] = set()
        for arm in self.arms:
            if everything or arm.name in arms:
                needed |= {arm.pretrain.records} if arm.pretrain else set()
                needed |= {one.records for one in self.measures_of(arm) if isinstance(one, HeldOut)}
        return [name for name in self.records if name in needed]


def check_known(what: str, names: Collection[str], known: Sequence[str]) -> None:
    """Raises UserError for a name that is not known; the message begins with `what`."""
    for name in names:
        if name not in known:
            raise UserError(f"{what} {name!r} is unknown; expected one of {', '.join(known) or 'none'}")


def _folder_name(name: str) -> str:
    return name.replace(" ", "-").replace("/", "-")


def load_experiment(name: str) -> Experiment:
    """Returns the experiment that --experiment=NAME[:ARG] or --experiment=PATH[:ARG] names.

    Args:
        name: the name of an installed experiment, with or without "experiments/" before it, or a file.

    Raises:
        UserError: there is no such file, it raised an error, or it does not return an experiment.
    """
    if f"experiments/{config_files.split(name)[0]}" in config_files.names():
        name = f"experiments/{name}"
    return config_files.call(name, "experiment", "get_experiment", Experiment, "experiments")


# Running an experiment


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


class Sweep:
    """Runs an experiment in a directory; runs that have a result are not repeated.

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
        self.experiment, self.directory, self._inputs, self._log = experiment, directory, inputs, log
        if runs:
            self._check_inputs()
        described: dict[str, Any] = {
            "title": experiment.title,
            "budget": dataclasses.asdict(experiment.budget) if experiment.budget else {},
            "vocabulary": list(experiment.vocabulary or ()),
            "records": {name: list(flags) for name, flags in experiment.records.items()},
            "checkpoint": inputs.checkpoint,
        } | ({"train_rows": experiment.train_rows} if experiment.train_rows else {})
        before = self._stored("experiment.json", dict, None)
        if before is None:
            if not runs:
                raise UserError(f"--workdir={directory} holds no experiment yet; leave out --table to run it")
            files.make_directory(directory)
            json_files.write(os.path.join(directory, "experiment.json"), before := described)
        for name in {**before, **described}:
            if before.get(name) != described.get(name) and (runs or name != "checkpoint"):
                raise UserError(
                    f"--workdir={directory} holds an experiment with the {name} {before.get(name)!r}, and "
                    f"this one has {described.get(name)!r}; choose another --workdir"
                )
        self._lock, self._holds = Lock(directory, log=log), False
        self._read()

    def _stored(self, name: str, schema: Any, default: Any) -> Any:
        path = os.path.join(self.directory, name)
        return json_files.read(path, schema) if files.exists(path) else default

    def _read(self) -> None:
        row = {"arm": str, "seed": int, "measure": str, "scores": {str: float}}
        self.results: list[dict[str, Any]] = self._stored("results.json", [row], [])
        self._recorded: dict[str, dict[str, Any]] = self._stored("settings.json", {str: {str: dict}}, {})
        self._times: dict[str, dict[str, float]] = self._stored("step_times.json", {str: {str: float}}, {})

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the directory during the block, so that no other sweep loses the results of this one."""
        if self._holds:
            yield
            return
        self._lock.acquire()
        self._holds = True
        try:
            self._read()  # Another sweep may have added results before it released the directory.
            yield
        finally:
            self._holds = False
            self._lock.release()

    def run(self, arms: Sequence[str] = ()) -> None:
        """Runs the arms that have no results yet: all with the first seed, then all with the second one.

        Args:
            arms: names of the arms to run; all by default. An arm that another one starts from has to be
                among them, or to have run.
        """
        with self.held():
            self._check_settings()
            for seed in range(self.experiment.seeds):
                for arm in self.experiment.arms:
                    if not arms or arm.name in arms:
                        self._run_arm(arm, seed)

    def result(self, arm: str, seed: int, measure: str) -> dict[str, float] | None:
        """Returns the scores of a measure, or None if there are none yet."""
        rows = (x for x in self.results if (x["arm"], x["seed"], x["measure"]) == (arm, seed, measure))
        return next((row["scores"] for row in rows), None)

    def over_seeds(self, arm: str, measure: str) -> dict[str, list[float]]:
        """Returns the values of each metric of a measure, in the order of the seeds."""
        found: dict[str, list[float]] = {}
        for row in sorted(self.results, key=lambda row: row["seed"]):
            if (row["arm"], row["measure"]) == (arm, measure):
                for name, value in row["scores"].items():
                    found.setdefault(name, []).append(value)
        return found

    def _add(self, arm: Arm, seed: int, measure: str, scores: Mapping[str, float]) -> None:
        self._lock.check()  # Another host may have taken over the directory.
        self.results.append({"arm": arm.name, "seed": seed, "measure": measure, "scores": dict(scores)})
        json_files.write(os.path.join(self.directory, "results.json"), self.results)

    def model(self, arm: str, seed: int) -> str:
        """Returns the model of an arm: a work directory, or --model."""
        chosen = self.experiment.arm(arm)
        if not chosen.pretrain:
            return self.model(chosen.start, seed) if chosen.start else self._inputs.checkpoint
        if self.result(arm, seed, PRETRAINING) is None:
            raise _NotTrainedError(f"the model of arm {arm!r} has not been trained; add it to --arms")
        return os.path.join(self._folder(arm, seed), PRETRAINING)

    def _folder(self, arm: str, seed: int) -> str:
        return os.path.join(self.directory, _folder_name(arm), f"seed-{seed}")

    def _check_inputs(self) -> None:
        experiment, inputs = self.experiment, self._inputs
        if experiment.needs_checkpoint and not inputs.checkpoint:
            raise UserError("the experiment starts from a trained model; give --model=DIR")
        for arm in experiment.arms:
            for measure in experiment.measures_of(arm):
                if not isinstance(measure, Finetuning):
                    continue
                if measure.data and measure.data not in inputs.data:
                    raise UserError(
                        f"{measure.name}: give --data={measure.data}=DIR, the folder of its files"
                    )
                config = self._finetuning_config(measure, arm)
                for split, file in _split_files(config).items():
                    if not file:
                        raise UserError(f"{measure.name}: no {split} file; set data.train and data.eval")
                    for path in table.parts(file):
                        if not table.exists(path):
                            raise UserError(f"{measure.name}: {checks.no_such_file(path, 'its rows')}")
                # The metrics of a task that is configured without any may depend on its data.
                reported = metrics.listed(config.metrics) or registry.get(config.task).metrics
                check_known(f"{measure.name}: metric", measure.metrics if reported else (), reported)

    # The settings of results

    def _check_settings(self) -> None:
        """Raises UserError if the settings of results differ from those of the experiment."""
        for arm in self.experiment.arms:
            for name, before in self._recorded.get(arm.name, {}).items():
                if name == TIMING or not any(
                    (x["arm"], x["measure"]) == (arm.name, name) for x in self.results
                ):
                    continue
                with contextlib.suppress(_NotTrainedError, StopIteration):
                    now = self._settings(arm, name)
                    if differing := [x for x in now if x in before and before[x] != now[x]]:
                        raise UserError(
                            f"--workdir={self.directory} has results of arm {arm.name!r}, {name}, with "
                            f"{differing[0]}={before[differing[0]]!r}, and it is {now[differing[0]]!r} now; "
                            "undo the change, or choose another --workdir"
                        )

    def _record_settings(self, arm: Arm, name: str, settings: Mapping[str, Any]) -> None:
        self._recorded.setdefault(arm.name, {})[name] = dict(settings)
        json_files.write(os.path.join(self.directory, "settings.json"), self._recorded)

    def _settings(self, arm: Arm, name: str) -> dict[str, Any]:
        """Returns what determines the scores of a measure or of the pre-training, for all seeds."""
        if name == PRETRAINING:
            assert arm.pretrain is not None
            config = self._pretraining_config(arm, 0, _TIMED_STEPS)
            values = _identity(config, dict(config_fields.fields(pretrain_config.PretrainConfig())))
            values |= {"records": arm.pretrain.records, "share": arm.pretrain.share}
            if config.init_from or config.distillation.init_layers:
                values["explicit"] = sorted(arm.pretrain.explicit_fields)
            values |= _records_digest(config.data.dir)
        else:
            measure = next(one for one in self.experiment.measures if one.name == name)
            if isinstance(measure, Finetuning):
                config = self._finetuning_config(measure, arm, init_from=self.model(arm.name, 0))
                values = _identity(config, fields.declared(config.task))
                values |= {f"files.{s}": table.digest(x) for s, x in _split_files(config).items()}
            else:
                values = dataclasses.asdict(measure)
                if isinstance(measure, HeldOut):
                    values |= _records_digest(self._inputs.records[measure.records])
        inside = os.path.join(self.directory, "")  # which may move
        values = {k: v.removeprefix(inside) if isinstance(v, str) else v for k, v in values.items()}
        return json.loads(json.dumps(values))

    # An arm

    def _run_arm(self, arm: Arm, seed: int) -> None:
        if arm.pretrain and self.result(arm.name, seed, PRETRAINING) is None:
            self._pretrain(arm, seed)
        for measure in self.experiment.measures_of(arm):
            if self.result(arm.name, seed, measure.name) is not None:
                continue
            model = self.model(arm.name, seed)
            self._log(f"{arm.name}, seed {seed}: {measure.name}")
            self._record_settings(arm, measure.name, self._settings(arm, measure.name))
            found = self._judge(measure, arm, seed, model)
            self._add(arm, seed, measure.name, found)
            listed = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
            self._log(f"{arm.name}, seed {seed}: {measure.name}: {listed}")
            for name in ("checkpoints", "best"):  # the weights, which nothing needs any more
                path = os.path.join(self._folder(arm.name, seed), _folder_name(measure.name), name)
                shutil.rmtree(path, ignore_errors=True)

    def _judge(self, measure: Measure, arm: Arm, seed: int, model: str) -> dict[str, float]:
        if isinstance(measure, MinimalPairs):
            scorer = minimal_pairs.SentenceScorer(model, lambda line: None)
            _, summary = minimal_pairs.evaluate(scorer, minimal_pairs.generate())
            return {name: row["accuracy"] for name, row in summary.items()}
        if isinstance(measure, HeldOut):
            found = held_out.held_out(
                model,
                self._inputs.records[measure.records],
                prob=measure.prob,
                replace=measure.replace,
                rows=measure.rows,
                log=lambda line: None,
            )
            names = ("mlm_loss", "mlm_accuracy", "clm_loss", "clm_accuracy", "nsp_accuracy")
            return {name: found[name] for name in names if name in found}
        config = self._finetuning_config(measure, arm, init_from=model, seed=seed)
        if limits := [rows for rows in (config.train_rows, self.experiment.train_rows) if rows]:
            config.train_rows = min(limits)
        workdir = os.path.join(self._folder(arm.name, seed), _folder_name(measure.name))
        found = finetune.finetune(config, workdir)["scores"]
        check_known(f"{measure.name}: metric", measure.metrics, list(found))
        return {name: found[name] for name in measure.metrics}

    def _finetuning_config(self, measure: Finetuning, arm: Arm, **values: Any) -> ml_collections.ConfigDict:
        config = config_files.load(measure.config, "finetune")
        config.eval.every, config.checkpoint.every = 10**6, 0
        if measure.data:
            values["data_dir"] = self._inputs.data[measure.data]
        for name, value in (values | dict(measure.fields) | arm.fields(measure.name)).items():
            fields.lookup(config, name)  # raises UserError for an unknown name
            fields.assign(config, name, value)
        return config

    def _pretraining_config(self, arm: Arm, seed: int, steps: int) -> ml_collections.ConfigDict:
        assert arm.pretrain is not None
        run = Run(steps, seed, self._inputs.checkpoint, lambda name: self.model(name, seed))
        config = arm.pretrain.config(run)
        config.steps, config.seed = steps, seed
        config.data.dir = self._inputs.records[arm.pretrain.records]
        config.checkpoint.every, config.checkpoint.keep = max(1, steps // _CHECKPOINTS), 1
        config.log_every, config.eval.every = max(1, steps // _LINES), max(1, steps // _EVALUATIONS)
        config.eval.batches = config.eval.batches or _EVALUATION_BATCHES
        return config

    def _pretrain(self, arm: Arm, seed: int) -> None:
        assert arm.pretrain is not None
        self._record_settings(arm, PRETRAINING, self._settings(arm, PRETRAINING))
        steps = self._steps(arm, seed)
        config = self._pretraining_config(arm, seed, steps)
        self._log(f"{arm.name}, seed {seed}: pre-training, {counted(steps, 'step')}")
        directory = os.path.join(self._folder(arm.name, seed), PRETRAINING)
        pretrain.pretrain(config, directory, explicit=arm.pretrain.explicit_fields)
        seconds, tokens = spent(directory)
        self._add(arm, seed, PRETRAINING, {"steps": steps, "tokens": tokens, "wall_seconds": seconds})

    # Budgets

    def _steps(self, arm: Arm, seed: int) -> int:
        """Returns the number of steps of an arm that fit into its budget."""
        budget = self.experiment.budget
        assert budget is not None and arm.pretrain is not None
        if budget.steps:
            return max(1, round(budget.steps * arm.pretrain.share))
        config = self._pretraining_config(arm, seed, _TIMED_STEPS)
        if budget.seconds:
            self._time_steps(seed)
            costs, most = self._times[arm.name], budget.seconds
        else:
            split = manifests.read(config.data.dir)["splits"]["train"]
            per_row = split["tokens"] / split["rows"]
            costs = {_kind_name(rows, causal): rows * per_row for rows, causal in step_kinds(config)}
            most = budget.tokens
        total = sum(count * costs[_kind_name(*kind)] for kind, count in step_kinds(config).items())
        return max(1, int(most * arm.pretrain.share * _TIMED_STEPS / total))

    def _time_steps(self, seed: int) -> None:
        """Times the steps of all arms in turn, twice, except those that were timed with the same settings."""
        due = []
        for arm in self.experiment.arms:
            with contextlib.suppress(_NotTrainedError):  # it has a teacher
                if arm.pretrain:
                    settings = self._settings(arm, PRETRAINING)
                    timed = self._recorded.get(arm.name, {}).get(TIMING)
                    if timed != settings or arm.name not in self._times:
                        due.append((arm, settings, self._pretraining_config(arm, seed, _TIMED_STEPS)))
        best: dict[str, dict[str, float]] = {}
        for _, (arm, _, config) in itertools.product(range(2), due):
            for rows, causal in step_kinds(config):
                seconds, times = self._time(arm, config, rows, causal), best.setdefault(arm.name, {})
                name = _kind_name(rows, causal)
                times[name] = min(seconds, times.get(name, seconds))
        for arm, settings, _ in due:
            self._record_settings(arm, TIMING, settings)
            for name, seconds in best[arm.name].items():
                self._log(f"{arm.name}: {seconds:.3f} s for a step of {name}")
        self._times |= best
        json_files.write(os.path.join(self.directory, "step_times.json"), self._times)

    def _time(self, arm: Arm, config: ml_collections.ConfigDict, rows: int, causal: bool) -> float:
        """Returns the seconds of a step of one kind."""
        assert arm.pretrain is not None
        config = ml_collections.ConfigDict(config.to_dict())
        config.batch_size, config.batch_ramp = rows, ""
        config.causal_steps = config.steps - 1 if causal else 0
        config.checkpoint.every, config.eval.every, config.log_every = 0, 0, 8
        scratch = os.path.join(self.directory, TIMING)
        shutil.rmtree(scratch, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()):
            stop, explicit = [_StopAt(32)], arm.pretrain.explicit_fields
            pretrain.pretrain(config, scratch, explicit=explicit, evaluators=stop)
        lines = read_metrics(scratch, "train")[1:]  # the first one contains the warm-up
        shutil.rmtree(scratch, ignore_errors=True)
        return min(line["step_seconds_p50"] for line in lines if "step_seconds_p50" in line)


class _NotTrainedError(UserError):
    """The model of an arm is needed before it is trained."""


class _StopAt(Evaluator):
    """Ends a run after a number of steps."""

    name = TIMING

    def __init__(self, step: int):
        self.every, self._ends = step, False

    def evaluate(self, step, state, context):
        """Returns no metrics."""
        self._ends = True
        return {}

    def should_stop(self, step: int) -> bool:
        """Returns whether the run has reached the step."""
        return self._ends


def step_kinds(config: ml_collections.ConfigDict) -> collections.Counter[tuple[int, bool]]:
    """Returns the number of steps of each kind, (rows, left to right), in a run of pre-training."""
    typed = pretrain_config.pretraining(config)
    sizes, causal = typed.batch_sizes, typed.causal_steps
    edges = sorted({x for x in (*sizes.starts, causal) if x < typed.steps} | {typed.steps})
    found: collections.Counter[tuple[int, bool]] = collections.Counter()
    for start, end in itertools.pairwise(edges):
        found[sizes.at(start), start < causal] += end - start
    return found


def _kind_name(rows: int, causal: bool) -> str:
    return f"{counted(rows, 'row')}{', left to right' if causal else ''}"


def spent(directory: str) -> tuple[float, float]:
    """Returns the seconds of all train steps of a run, resumptions included, and their tokens."""
    step, seconds, tokens = 0, 0.0, 0.0
    for line in read_metrics(directory, "train"):
        took = (line["step"] - step) / line["steps_per_second"]
        step, seconds, tokens = line["step"], seconds + took, tokens + took * line["tokens_per_second"]
    return seconds, tokens


def _identity(config: ml_collections.ConfigDict, declared: Mapping[str, Field]) -> dict[str, Any]:
    free = {name for name, field in declared.items() if field.resume == "free"}
    return {name: x for name, x in config_fields.flatten(config) if name not in {*free, *_OF_A_RUN}}


def _records_digest(directories: str) -> dict[str, str]:
    paths = comma_lists.paths(directories)
    if not all(files.exists(os.path.join(path, manifests.FILE)) for path in paths):
        return {}  # records of arms that are not run are not made
    return {"files.records": "+".join(manifests.read(path)["fingerprint"] for path in paths)}


def _split_files(config: ml_collections.ConfigDict) -> dict[str, str]:
    run = fields.of_run(config)
    return {split: split_file(run, registry.get(run.task), split) for split in ("train", "dev")}


# The table


def write_report(sweep: Sweep) -> str:
    """Writes the table and the plots of all runs so far, and returns the table as Markdown."""
    experiment, directory = sweep.experiment, sweep.directory
    text = (
        "\n\n".join([f"# {experiment.title}", *_tables(sweep), experiment.published.strip()]).strip() + "\n"
    )
    atomic.write_text(os.path.join(directory, "README.md"), text)
    panels = {
        f"{measure}: {metric}": {
            arm.name: values
            for arm in experiment.arms
            if (values := sweep.over_seeds(arm.name, measure).get(metric))
        }
        for measure, metric in _columns(sweep)
    }
    if panels:
        curves.plot_scores(panels, os.path.join(directory, "scores.png"), title=experiment.title)
    runs = {}
    for arm in experiment.arms:
        if arm.pretrain and sweep.result(arm.name, 0, PRETRAINING) is not None:
            runs[arm.name] = read_metrics(sweep.model(arm.name, 0))  # the directory may have been deleted
    if runs := {name: rows for name, rows in runs.items() if rows}:
        curves.plot_metrics(runs, os.path.join(directory, "curves.png"), experiment.title)
    return text


def _columns(sweep: Sweep) -> list[tuple[str, str]]:
    """Returns (measure, metric) of each column of scores."""
    pairs = itertools.product(sweep.experiment.measures, sweep.experiment.arms)
    found = [(one.name, x) for one, arm in pairs for x in sweep.over_seeds(arm.name, one.name)]
    return list(dict.fromkeys(found))


def _tables(sweep: Sweep) -> Iterator[str]:
    experiment = sweep.experiment
    if experiment.budget:
        rows = []
        for arm in experiment.arms:
            if of_arm := sweep.over_seeds(arm.name, PRETRAINING):
                tokens, seconds = of_arm["tokens"][0] / 1e6, np.median(of_arm["wall_seconds"])
                rows.append([arm.name, f"{of_arm['steps'][0]:,.0f}", f"{tokens:,.2f}", f"{seconds:,.0f}"])
        yield markdown.table(["arm", "steps", "million tokens", "seconds"], rows)
    columns, rows = _columns(sweep), []
    for arm in experiment.arms:
        values = [sweep.over_seeds(arm.name, measure).get(metric, []) for measure, metric in columns]
        rows.append([arm.name, str(max(map(len, values), default=0)), *map(_mean, values)])
    yield markdown.table(["arm", "runs", *(f"{measure}: {metric}" for measure, metric in columns)], rows)
    if experiment.train_rows:
        yield f"Fine-tunings train on the first {counted(experiment.train_rows, 'row')} of their data."
    compared = [compare(one, _runs(sweep, one)) for one in experiment.comparisons]
    if rows := [list(row) for row in compared if row]:
        header = ["published", "order of the arms", "order found", "pairs of arms"]
        yield (
            f"{markdown.table(header, rows)}\n\nBest first; `>` means that two means differ significantly by "
            f"Welch's t-test at {_SIGNIFICANCE:.0%}, without correction for multiple comparisons."
        )


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}" if values else ""


def _runs(sweep: Sweep, comparison: Comparison) -> dict[str, list[float]]:
    """Returns the scores of the runs of each arm, averaged over the measures; a larger one is better."""
    found = {}
    for arm in comparison.published:
        values = []
        for measure in comparison.measures:
            of_arm = sweep.over_seeds(arm, measure)
            metric = comparison.metric or next(iter(of_arm), "")
            sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
            values.append([sign * score for score in of_arm.get(metric, [])])
        found[arm] = [float(np.mean(run)) for run in zip(*values, strict=False)]
    return found


def compare(comparison: Comparison, runs: Mapping[str, Sequence[float]]) -> tuple[str, str, str, str] | None:
    """Returns a row of the table of published and found orders, or None if fewer than two arms have runs.

    Args:
        comparison: the published scores.
        runs: scores of the runs of each arm; larger ones are better.
    """
    runs = {arm: runs[arm] for arm in comparison.published if runs.get(arm)}
    if len(runs) < 2:
        return None
    published, means = comparison.published, {arm: float(np.mean(values)) for arm, values in runs.items()}
    counts = collections.Counter[str]()
    for a, b in itertools.combinations(runs, 2):
        if published[a] != published[b]:
            same = (published[a] > published[b]) == (means[a] > means[b])
            counts["unclear" if not differ(runs[a], runs[b]) else "same" if same else "reversed"] += 1
    return (
        comparison.name,
        _in_order({arm: published[arm] for arm in runs}, lambda a, b: published[a] != published[b]),
        _in_order(means, lambda a, b: differ(runs[a], runs[b])),
        f"{counts['same']} as published, {counts['reversed']} reversed, {counts['unclear']} not significant",
    )


def differ(a: Sequence[float], b: Sequence[float]) -> bool:
    """Returns whether the means of two arms differ significantly; never for an arm with a single run."""
    if min(len(a), len(b)) < 2:
        return False
    if max(np.ptp(a), np.ptp(b)) == 0:  # the test would divide 0 by 0
        return a[0] != b[0]
    return bool(stats.ttest_ind(a, b, equal_var=False).pvalue < _SIGNIFICANCE)


def _in_order(means: Mapping[str, float], differs: Callable[[str, str], bool]) -> str:
    arms = sorted(means, key=lambda arm: -means[arm])
    signs = [" > " if differs(a, b) else " ≈ " for a, b in itertools.pairwise(arms)]
    return "".join(itertools.chain(*itertools.zip_longest(arms, signs, fillvalue="")))
