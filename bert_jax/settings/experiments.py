"""Experiments: arms that are trained and judged alike, which differ in what an experiment asks about.

A file in configs/experiments/ defines `get_experiment()`, which returns an `Experiment`. `bert-jax sweep`
runs it. These classes hold plain values and functions; nothing here trains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.io.wording import did_you_mean

EVERY = "*"  # in `Arm.tune`: the fields of all fine-tunings


@dataclasses.dataclass(frozen=True)
class Run:
    """What the configuration of a pre-training run may depend on.

    Attributes:
        steps: number of steps that fit into the budget.
        seed: seed of the run.
        checkpoint: the value of --checkpoint.
        model: function (arm) that returns the work directory of an earlier arm's pre-training with this seed.
    """

    steps: int
    seed: int
    checkpoint: str
    model: Callable[[str], str]

    def share(self, fraction: float) -> int:
        """Returns a fraction of the steps as a whole number of at least 1."""
        return max(1, round(fraction * self.steps))


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """How an arm is pre-trained.

    Attributes:
        config: function (run) that returns the configuration. Steps, seed and records are filled in, and so
            is how often the run is logged, saved and evaluated.
        records: name of its records in `Experiment.records`; with `length_ramp` several, with commas between.
        share: fraction of the budget that it may spend.
    """

    config: Callable[[Run], ml_collections.ConfigDict]
    records: str
    share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Arm:
    """One of the things that an experiment compares.

    Attributes:
        name: name in tables, which is also that of its folder.
        pretrain: its pre-training; None for an arm that takes the model of another one or of --checkpoint.
        start: the arm whose model it takes if it has no pre-training; "" for --checkpoint.
        tune: fields of the fine-tunings that differ in this arm, by the name of the measure or `EVERY`.
        measures: names of the measures that judge it; None for all.
    """

    name: str
    pretrain: Pretraining | None = None
    start: str = ""
    tune: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] | None = None

    def fields(self, measure: str) -> dict[str, Any]:
        """Returns the fields of a fine-tuning that differ in this arm."""
        return {**self.tune.get(EVERY, {}), **self.tune.get(measure, {})}


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The losses and accuracies of pre-training on held-out records, with the same masks for all arms.

    Attributes:
        name: name of the measure.
        records: name of the records in `Experiment.records`.
        prob: share of tokens to predict.
        replace: shares of them that become [MASK], a random token, and stay, as in `masking.replace`.
        rows: number of rows, from the first one on; 0 for all.
    """

    name: str
    records: str
    prob: float = 0.15
    replace: str = "0.8,0.1,0.1"
    rows: int = 2000


@dataclasses.dataclass(frozen=True)
class MinimalPairs:
    """The share of minimal pairs whose grammatical sentence is the more probable one.

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
        data: name of the folder with its files, as given by --data=NAME=DIR; "" for a config that names them.
        metrics: the metrics to report.
        fields: fields that differ from the config, by their dotted names.
    """

    name: str
    config: str
    data: str
    metrics: Sequence[str]
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_TASKS = {
    "CoLA": ("finetune/glue:cola", "glue", "matthews"),
    "SST-2": ("finetune/glue:sst2", "glue", "accuracy"),
    "MRPC": ("finetune/glue:mrpc", "glue", "f1"),
    "STS-B": ("finetune/glue:stsb", "glue", "pearson"),
    "RTE": ("finetune/glue:rte", "glue", "accuracy"),
    "SQuAD": ("finetune/squad:v1", "squad", "f1"),
    "CoNLL-2003": ("finetune/conll", "conll", "f1"),
}
_SST_2_ROWS = 10_000  # of 67,349, so that it costs about as much as the others
SST_2 = f"SST-2, {_SST_2_ROWS:,} rows"  # name of its measure


def finetuning(task: str, rate: float, fields: Mapping[str, Any] = {}, name: str = "") -> Finetuning:
    """Returns the fine-tuning on a known task, for three epochs.

    Adam has bias correction and the rate begins to fall at the end of warm-up: models of this size fail less
    often with them. SST-2 has its first 10,000 rows alone, and its name says so.

    Args:
        task: "CoLA", "SST-2", "MRPC", "STS-B", "RTE", "SQuAD" or "CoNLL-2003".
        rate: the highest learning rate.
        fields: other fields, by their dotted names.
        name: name of the measure; "" for that of the task.
    """
    config, data, metric = _TASKS[task]
    few = {"train_rows": _SST_2_ROWS} if task == "SST-2" else {}
    common = {
        "optimizer.name": "adamw_bias_corrected",
        "optimizer.schedule": "warmup_then_decay",
        "optimizer.learning_rate": rate,
        "epochs": 3.0,
    }
    return Finetuning(name or (SST_2 if few else task), config, data, (metric,), {**common, **few, **fields})


_SMALL = {  # what models of some million parameters need: benchmarks/results/hour.md
    "STS-B": {
        "optimizer.learning_rate": 1e-3,
        "epochs": 10.0,
        "model.hidden_dropout_prob": 0.0,
        "model.attention_probs_dropout_prob": 0.0,
    },
    "SST-2": {"epochs": 5.0, "model.hidden_dropout_prob": 0.5},
}


def finetuning_small(task: str, fields: Mapping[str, Any] = {}) -> Finetuning:
    """Returns the fine-tuning on a known task, with what suits models of the size of pretrain/hour.

    Args:
        task: as in `finetuning`.
        fields: other fields, by their dotted names.
    """
    return finetuning(task, 3e-4, {**_SMALL.get(task, {}), **fields})


Measure = HeldOut | MinimalPairs | Finetuning


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Scores of a paper whose order is compared with the order found; larger scores are better.

    Attributes:
        name: what the paper measures.
        published: its scores, by the names of arms.
        measures: names of the measures here that come nearest; of several, the mean of a run's scores counts.
        metric: the metric to compare; "" for the first one of each measure.
    """

    name: str
    published: Mapping[str, float]
    measures: Sequence[str]
    metric: str = ""


@dataclasses.dataclass(frozen=True)
class Budget:
    """What the pre-training of an arm may spend; one of the three is not 0.

    Attributes:
        steps: optimizer steps.
        tokens: tokens of text, without padding.
        seconds: seconds of train steps, as they are measured on this machine before the first run. A run is
            then counted in steps: it resumes exactly, and other work on the machine does not favor an arm.
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
        """Returns a share of the budget, of which there is at least one step or token."""
        steps, tokens = (amount and max(1, round(amount * share)) for amount in (self.steps, self.tokens))
        return Budget(steps, tokens, self.seconds * share)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: what it asks, for tables and pictures.
        arms: the arms, in the order in which they run; an arm stands after those that it starts from.
        measures: what all arms are judged by.
        budget: the budget of pre-training; None if no arm is pre-trained.
        seeds: number of runs of each arm.
        vocabulary: flags of `bert-jax vocab`; None for the vocabulary of --checkpoint.
        records: flags of `bert-jax data`, by name.
        comparisons: scores of the paper, whose order the table has beside the order found.
        published: Markdown on the figures of the paper and what differs here, for the end of the table.
    """

    title: str
    arms: Sequence[Arm]
    measures: Sequence[Measure]
    budget: Budget | None = None
    seeds: int = 3
    vocabulary: Sequence[str] | None = None
    records: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    comparisons: Sequence[Comparison] = ()
    published: str = ""

    def __post_init__(self):
        names = [arm.name for arm in self.arms]
        _check_unique("arms", names)
        _check_unique("measures", [measure.name for measure in self.measures])
        for number, arm in enumerate(self.arms):
            if arm.start:
                check_known(f"arm {arm.name!r}: start", arm.start, names[:number])
            for name in (*arm.tune, *(arm.measures or ())):
                if name != EVERY:
                    check_known(f"arm {arm.name!r}: measure", name, [one.name for one in self.measures])
            for name in arm.pretrain.records.split(",") if arm.pretrain else ():
                check_known(f"arm {arm.name!r}: records", name, list(self.records))
        for comparison in self.comparisons:
            for name in comparison.published:
                check_known(f"comparison {comparison.name!r}: arm", name, names)
            for name in comparison.measures:
                check_known(
                    f"comparison {comparison.name!r}: measure", name, [one.name for one in self.measures]
                )
        if any(arm.pretrain for arm in self.arms) != bool(self.budget):
            raise UserError("an experiment has a budget if and only if one of its arms is pre-trained")

    def arm(self, name: str) -> Arm:
        """Returns the arm with this name."""
        return next(arm for arm in self.arms if arm.name == name)

    def measures_of(self, arm: Arm) -> list[Measure]:
        """Returns the measures that judge an arm."""
        return [one for one in self.measures if arm.measures is None or one.name in arm.measures]

    def with_measures(self, measures: Sequence[Measure]) -> Experiment:
        """Returns the experiment with some of its measures."""
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
        """Returns whether an arm starts from --checkpoint, or the vocabulary is that of --checkpoint."""
        takes = any(not (arm.pretrain or arm.start) for arm in self.arms)
        return takes or (self.vocabulary is None and bool(self.records))

    def data_names(self) -> list[str]:
        """Returns the names of the folders with the files of the fine-tunings, each once."""
        tuned = [one.data for one in self.measures if isinstance(one, Finetuning) and one.data]
        return list(dict.fromkeys(tuned))


def _check_unique(what: str, names: Sequence[str]) -> None:
    if len({*names}) < len(names) or not all(names):
        raise UserError(f"{what} called {', '.join(names)}: expected different names")


def check_known(what: str, name: str, known: Sequence[str]) -> None:
    """Raises UserError for a name that is not known; `what` opens the message."""
    if name not in known:
        near = did_you_mean(name, known) or f"; expected one of {', '.join(known) or 'none'}"
        raise UserError(f"{what} {name!r} is unknown{near}")
