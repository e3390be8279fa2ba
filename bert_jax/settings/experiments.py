"""Experiments: arms that differ in one setting and are trained and evaluated in the same way.

A file in configs/experiments/ defines `get_experiment()`, which returns an `Experiment`. `bert-jax sweep`
runs it. These classes hold values and functions; nothing here trains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.settings.experiment_names import check_known, check_unique
from bert_jax.settings.typed.masking_config import MaskingConfig

EVERY = "*"  # in `Arm.tune`: all fine-tunings
PRETRAINING = "pretraining"  # beside the measures, the name of the pre-training's costs and of its folder
# Beside the arms, the folder in which steps are timed, which is deleted; beside the measures, the name of the
# settings with which they were timed.
TIMING = "timing"


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
class Pretraining:
    """How an arm is pre-trained.

    Attributes:
        config: function (run) that returns the configuration. Its steps, seed and records are set by the
            runner, as are the intervals at which the run is logged, saved and evaluated.
        records: name of its records in `Experiment.records`; with `length_ramp` several, comma-separated.
        share: fraction of the budget that it may spend.
        explicit: fields of `config.model` that a model which starts from `init_from` keeps, as those that are
            flags of `bert-jax pretrain`; None for those that a `config_files.ArmConfig` changes.
    """

    config: Callable[[Run], ml_collections.ConfigDict]
    records: str
    share: float = 1.0
    explicit: Collection[str] | None = None

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise UserError(f"a pre-training with share={self.share:g}: expected more than 0 and at most 1")

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
        prob: share of tokens to predict.
        replace: shares of them that become [MASK], become a random token, and stay, as in
            `masking.replace`.
        rows: number of rows to read; 0 for all.
    """

    name: str
    records: str
    prob: float = 0.15
    replace: str = "0.8,0.1,0.1"
    rows: int = 2000

    def __post_init__(self):
        if self.rows < 0:
            raise UserError(f"measure {self.name!r}: rows={self.rows}: expected a number, or 0 for all rows")
        MaskingConfig(prob=self.prob, replace=self.replace).options(128, 0, f"measure {self.name!r}: HeldOut")


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
    """The share of minimal pairs in which the grammatical sentence is more probable.

    Attributes:
        name: name of the measure.
    """

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

    def __post_init__(self):
        if not self.metrics or isinstance(self.metrics, str):
            raise UserError(
                f"measure {self.name!r}: metrics={self.metrics!r}: expected a sequence of names, such as "
                '("accuracy",)'
            )


@dataclasses.dataclass(frozen=True)
class _Task:
    """A task: its config, the name of the task in finetune/hour, the name of its data, and its metric."""

    config: str
    small: str
    data: str
    metric: str


_TASKS = {
    "CoLA": _Task("finetune/glue:cola", "cola", "glue", "matthews"),
    "SST-2": _Task("finetune/glue:sst2", "sst2", "glue", "accuracy"),
    "MRPC": _Task("finetune/glue:mrpc", "mrpc", "glue", "f1"),
    "STS-B": _Task("finetune/glue:stsb", "stsb", "glue", "pearson"),
    "RTE": _Task("finetune/glue:rte", "rte", "glue", "accuracy"),
    "SQuAD": _Task("finetune/squad:v1", "squad", "squad", "f1"),
    "CoNLL-2003": _Task("finetune/conll", "conll", "conll", "f1"),
}
_SST_2_ROWS = 10_000  # of 67,349, to make it about as expensive as the others
SST_2 = f"SST-2, {_SST_2_ROWS:,} rows"  # name of its measure


def finetuning(task: str, rate: float, fields: Mapping[str, Any] = {}, name: str = "") -> Finetuning:
    """Returns the fine-tuning on a known task, for three epochs.

    Adam has bias correction, and the learning rate decays from the end of warm-up: so fewer runs fail.
    SST-2 is reduced to its first 10,000 rows, which its name states.

    Args:
        task: "CoLA", "SST-2", "MRPC", "STS-B", "RTE", "SQuAD" or "CoNLL-2003".
        rate: peak learning rate.
        fields: further fields to change, by their dotted names.
        name: name of the measure; "" for that of the task.
    """
    common = {
        "optimizer.name": "adamw_bias_corrected",
        "optimizer.schedule": "warmup_then_decay",
        "optimizer.learning_rate": rate,
        "epochs": 3.0,
    }
    return _finetuning(task, _task(task).config, {**common, **fields}, name)


def finetuning_small(task: str, fields: Mapping[str, Any] = {}) -> Finetuning:
    """Returns the fine-tuning on a known task as in finetune/hour, for models of the size of pretrain/hour.

    Args:
        task: as in `finetuning`.
        fields: fields to change, by their dotted names.
    """
    return _finetuning(task, f"finetune/hour:{_task(task).small}", fields)


def _task(name: str) -> _Task:
    check_known("finetuning: task", name, list(_TASKS))
    return _TASKS[name]


def _finetuning(task: str, config: str, fields: Mapping[str, Any], name: str = "") -> Finetuning:
    few = {"train_rows": _SST_2_ROWS} if task == "SST-2" else {}
    metrics = (_TASKS[task].metric,)
    return Finetuning(name or (SST_2 if few else task), config, _TASKS[task].data, metrics, {**few, **fields})


Measure = HeldOut | MinimalPairs | Finetuning


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Published scores of arms, to be compared with the scores found.

    Attributes:
        name: name of the published metric or task.
        published: scores by the names of arms. Larger ones are better: negate losses, as is done with those
            found.
        measures: names of the corresponding measures here; the scores of a run are averaged over them.
        metric: metric to compare; "" for the first metric of each measure.
    """

    name: str
    published: Mapping[str, float]
    measures: Sequence[str]
    metric: str = ""


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long an arm is pre-trained. Exactly one of the three is not 0.

    Attributes:
        steps: optimizer steps.
        tokens: tokens of text, without padding.
        seconds: seconds of train steps, as timed on this machine before the first run and converted to steps.
            A run thus resumes exactly, and other load on the machine does not favor an arm.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self):
        given = [self.steps, self.tokens, self.seconds]
        if sum(map(bool, given)) != 1 or min(given) < 0 or not math.isfinite(self.seconds):
            raise UserError(
                f"a budget of steps={self.steps}, tokens={self.tokens} and seconds={self.seconds:g}: "
                "expected one of the three to be more than 0"
            )

    def part(self, share: float) -> Budget:
        """Returns a share of the budget, at least one step or token."""
        steps, tokens = (amount and max(1, round(amount * share)) for amount in (self.steps, self.tokens))
        return Budget(steps, tokens, self.seconds * share)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: title of tables and pictures.
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
        if self.seeds < 1 or self.train_rows < 0:
            raise UserError(
                f"an experiment with seeds={self.seeds} and train_rows={self.train_rows}: expected 1 seed or "
                "more, and a number of rows, or 0 for no limit"
            )
        names = [arm.name for arm in self.arms]
        check_unique("arms", names, TIMING)
        check_unique("measures", [measure.name for measure in self.measures], PRETRAINING, TIMING)
        for number, arm in enumerate(self.arms):
            if arm.start:
                check_known(f"arm {arm.name!r}: start", arm.start, names[:number])
            tuned = [one.name for one in self.measures if isinstance(one, Finetuning)]
            for name in (*arm.tune, *(arm.measures or ())):
                if name != EVERY:
                    check_known(f"arm {arm.name!r}: measure", name, [one.name for one in self.measures])
            for name in arm.tune:
                if name not in (EVERY, *tuned):
                    raise UserError(
                        f"arm {arm.name!r}: tune changes fields of fine-tunings, and the measure {name!r} is "
                        "none; leave it out"
                    )
            for name in arm.pretrain.records.split(",") if arm.pretrain else ():
                check_known(f"arm {arm.name!r}: records", name, list(self.records))
        for measure in self.measures:
            if isinstance(measure, HeldOut):
                check_known(f"measure {measure.name!r}: records", measure.records, list(self.records))
        for comparison in self.comparisons:
            for name in comparison.published:
                check_known(f"comparison {comparison.name!r}: arm", name, names)
            for name in comparison.measures:
                given = f"comparison {comparison.name!r}"
                check_known(f"{given}: measure", name, [one.name for one in self.measures])
                measure = next(one for one in self.measures if one.name == name)
                if comparison.metric and isinstance(measure, Finetuning):
                    check_known(f"{given}: metric of {name}", comparison.metric, measure.metrics)
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
        names = [one.name for one in measures]
        arms = [
            dataclasses.replace(
                arm,
                tune={name: x for name, x in arm.tune.items() if name in (EVERY, *names)},
                measures=None if arm.measures is None else [x for x in arm.measures if x in names],
            )
            for arm in self.arms
        ]
        kept = [one for one in self.comparisons if {*one.measures} <= {*names}]
        return dataclasses.replace(self, arms=arms, measures=measures, comparisons=kept)

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
                needed.update(arm.pretrain.records.split(",") if arm.pretrain else ())
                needed.update(one.records for one in self.measures_of(arm) if isinstance(one, HeldOut))
        return [name for name in self.records if name in needed]

    def data_names(self) -> list[str]:
        """Returns the names of the folders with the data of fine-tunings, without duplicates."""
        tuned = [one.data for one in self.measures if isinstance(one, Finetuning) and one.data]
        return list(dict.fromkeys(tuned))
