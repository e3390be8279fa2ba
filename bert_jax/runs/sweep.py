"""Repeated runs: grids of fine-tunings, and experiments, whose variants are trained and evaluated alike.

The result of one fine-tuning on a small data set is not reliable: the score varies by several points with the
seed, and some runs fail to learn at all (Devlin et al. 2019, appendix A.3; Mosbach et al. 2021).
`run_grid` fine-tunes with several seeds, and for several values of fields.

A file in configs/experiments/ defines `get_experiment()`, which returns an `Experiment` of several variants;
`bert-jax sweep` runs it. The directory of an experiment contains:

results.json      the budget, records and model of the experiment, and every score
VARIANT/seed-N/   the work directories of the pre-training and of the fine-tunings of a variant
README.md         the table
curves.png        the curves of pre-training
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.inference import held_out, minimal_pairs
from bert_jax.io import atomic, comma_lists, files, json_files
from bert_jax.io.wording import counted
from bert_jax.parallel import distributed
from bert_jax.plots import curves
from bert_jax.runs import finetune, pretrain
from bert_jax.settings import config_fields, config_files, pretrain_config
from bert_jax.settings.config_fields import Field
from bert_jax.tasks import fields, metrics, registry, table
from bert_jax.tasks.setup import split_file
from bert_jax.training.metrics import read_metrics
from bert_jax.workdir.lock import Lock

# Grids

SUMMARY_FILE = "summary.json"


def run_grid(
    config: ml_collections.ConfigDict,
    directory: str,
    seeds: int,
    grid: Mapping[str, Sequence[Any]],
    log: Callable[[str], None] = print,
    *,
    explicit: Collection[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Fine-tunes once for each seed and each point of a grid, each in its own work directory.

    It also writes the summaries of the points to summary.json in `directory`.

    Args:
        config: see `finetune.finetune`. The seeds are `config.seed`, `config.seed + 1` and so on.
        directory: the directory of the work directories of all runs.
        seeds: the number of seeds.
        grid: {field: values}; see `parse_grid`.
        log: called with lines of progress, in process 0 of the run.
        explicit: see `finetune.finetune`; fields of the grid are among them.
        **options: other arguments of `finetune.finetune`.

    Returns:
        The summaries of the points, sorted by their median score, the best first; see `summarize`.

    Raises:
        UserError: see `finetune.finetune`; also if the configuration does not have a field of the grid, or
            there is no evaluation file. Nothing is trained then.
    """
    log = distributed.log_of_primary(log)
    if seeds < 1:
        raise UserError(f"--seeds={seeds}: expected 1 or more")
    explicit = {*explicit, *(field.removeprefix("model.") for field in grid if field.startswith("model."))}
    points = {field: [_typed(config, field, value) for value in values] for field, values in grid.items()}
    queue: dict[str, list[ml_collections.ConfigDict]] = {}
    for values in itertools.product(*points.values()):
        chosen = dict(zip(points, values, strict=True))
        queue[setting_of(chosen)] = runs = []
        for number in range(seeds):
            runs.append(run := ml_collections.ConfigDict(config.to_dict()))
            for field, value in chosen.items():
                fields.assign(run, field, value)
            run.seed = config.seed + number
    firsts = set()
    for setting, runs in queue.items():
        fields.finetuning(runs[-1])  # the largest seed may be too large
        first = os.path.join(directory, setting, f"seed-{config.seed}")
        complete, task, _ = finetune.prepare(runs[0], first, explicit=explicit)
        firsts.add(task.metrics[0])
        if not split_file(complete, task.spec, "dev") or len(firsts) > 1:
            raise UserError(
                "a grid compares its runs by their first metric on an evaluation file; give "
                "--config.data.eval=FILE, and all the same metrics"
            )
    summaries: list[dict[str, Any]] = []
    for setting, runs in queue.items():
        results: list[dict[str, Any]] = []
        for run in runs:
            path = os.path.join(directory, setting, f"seed-{run.seed}")
            log(f"run {len(summaries) * seeds + len(results) + 1} of {len(queue) * seeds}: {path}")
            results.append(finetune.finetune(run, path, log, explicit=explicit, **options))
        summaries.append(summarize(setting, results))
    metric = summaries[0]["metric"]
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    summaries.sort(key=lambda summary: -sign * summary["scores"][metric]["median"])
    if jax.process_index() == 0:
        json_files.write(os.path.join(directory, SUMMARY_FILE), summaries)
    return summaries


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses texts like "optimizer.learning_rate=5e-5,3e-5" to {field: texts of values}.

    If there are semicolons, they separate the values, which may then have commas.
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        field, _, values = text.partition("=")
        if not values or field in grid:
            raise UserError(f"--grid={text}: expected a field once, such as batch_size=16,32")
        grid[field] = values.split(";" if ";" in values else ",")
    return grid


def _typed(config: ml_collections.ConfigDict, field: str, value: Any) -> Any:
    """Returns a value of the grid, a text or not, as one of a field of the configuration."""
    if field == "seed":
        raise UserError("--grid=seed=...: --seeds=N runs with N seeds, from config.seed up")
    old = fields.lookup(config, field)
    if isinstance(value, str) and not isinstance(old, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # A field without a value has no type to compare with, and is checked as any other one.
    if old is not None and type(old) is not type(value):
        raise UserError(f"--grid={field}={value}: expected values of the type {type(old).__name__}")
    return value


def summarize(setting: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the statistics of the content of best.json of each seed, for one point of a grid.

    `degenerate` is the number of runs that predict the same for every example.
    """
    statistics = {}
    for name in runs[0]["scores"]:
        values = np.asarray([run["scores"][name] for run in runs])
        best, worst = (np.min, np.max) if name in metrics.LOWER_IS_BETTER else (np.max, np.min)
        statistics[name] = {
            "median": float(np.median(values)),
            "best": float(best(values)),
            "worst": float(worst(values)),
            "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "all": values.tolist(),
        }
    degenerate = sum(bool(run.get("degenerate")) for run in runs)
    counts = {"setting": setting, "seeds": len(runs), "degenerate": degenerate}
    return {**counts, "metric": runs[0]["metric"], "scores": statistics}


def setting_of(point: Mapping[str, Any]) -> str:
    """Returns the name of a point {field: value} of a grid, which is also the name of its directory.

    The slashes of a value, such as a path or a URL, are written as %2F, and its percent signs as %25.
    """
    values = {field: str(value).replace("%", "%25").replace("/", "%2F") for field, value in point.items()}
    return ",".join(f"{field.split('.')[-1]}={value}" for field, value in values.items())


def best_run(directory: str, summary: Mapping[str, Any], config: ml_collections.ConfigDict) -> str:
    """Returns the work directory of the best run of a point; `config` has the first seed."""
    metric = summary["metric"]
    best = np.argmin if metric in metrics.LOWER_IS_BETTER else np.argmax
    seed = config.seed + int(best(summary["scores"][metric]["all"]))
    return os.path.join(directory, summary["setting"], f"seed-{seed}")


def read_summary(directory: str) -> dict[str, Any] | None:
    """Returns {"scores": {metric: median}, "run": work directory} of the best point; None without a grid."""
    path = os.path.join(directory, SUMMARY_FILE)
    if not files.exists(path):
        return None
    points = json_files.read(path, [{"setting": str, "scores": {str: {"median": (float, None)}}}])
    folder = os.path.join(directory, points[0]["setting"].replace("\0", "")) if points else directory
    runs = [os.path.join(folder, name) for name in files.names(folder) if name.startswith("seed-")]
    if not points or not runs:
        raise UserError(f"{path}: the work directories of its best setting are missing")
    return {"scores": {name: one["median"] for name, one in points[0]["scores"].items()}, "run": runs[0]}


def grid_table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table: the statistics over the seeds for each point and metric."""
    width = max(7, *(len(one["setting"]) for one in summaries))
    lines = [f"{'setting':<{width}}  {'metric':<18}  median    best   worst    std  seeds  degenerate"]
    for one in summaries:
        for name, x in one["scores"].items():
            lines.append(
                f"{one['setting'] or '-':<{width}}  {name:<18}  {x['median']:.4f}  {x['best']:.4f}  "
                f"{x['worst']:.4f}  {x['deviation']:.3f}  {one['seeds']:>5}  {one['degenerate']:>10}"
            )
    return lines


# The parts of an experiment

EVERY = "*"  # in `Variant.tune`: all fine-tunings
PRETRAINING, TIMING = "pretraining", "timing"  # used like names of measures
SST_2 = "SST-2, 10,000 rows"  # of 67,349, which makes it about as expensive as the other tasks

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
        model: function (variant) that returns the work directory of an earlier variant's pre-training with
            this seed.
    """

    steps: int
    seed: int
    checkpoint: str
    model: Callable[[str], str]

    def share(self, fraction: float) -> int:
        """Returns a fraction of the steps, rounded, and at least 1."""
        return max(1, round(fraction * self.steps))


@dataclasses.dataclass(frozen=True)
class VariantConfig:
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
class Variant:
    """One of the variants that an experiment compares.

    Attributes:
        name: name in tables and of its folder.
        config: function (run) that returns the configuration of its pre-training; None for a variant that
            starts from the model of another one or --model. The sweep sets steps, seed and records, and the
            intervals at which the run is logged, saved and evaluated.
        records: name of its records in `Experiment.records`.
        share: fraction of the budget that it may spend.
        explicit: fields of `config.model` that a model which starts from `init_from` keeps, in addition to
            those that a `VariantConfig` changes.
        start: without `config`, the variant whose model it starts from; "" for --model.
        tune: fields of fine-tunings to change in this variant, by the name of the measure or `EVERY`.
        measures: names of the measures that are taken of it; None for all.
    """

    name: str
    config: Callable[[Run], ml_collections.ConfigDict] | None = None
    records: str = ""
    share: float = 1.0
    explicit: Sequence[str] = ()
    start: str = ""
    tune: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] | None = None

    @property
    def explicit_fields(self) -> list[str]:
        """Returns the names of the fields of `config.model` that are kept."""
        return sorted({*self.explicit, *getattr(self.config, "explicit", ())})

    def fields(self, measure: str) -> dict[str, Any]:
        """Returns the fields of a fine-tuning to change in this variant."""
        return {**self.tune.get(EVERY, {}), **self.tune.get(measure, {})}


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The losses and accuracies of pre-training on 2,000 held-out records, with equal masks for all variants.

    Attributes:
        name: name of the measure.
        records: name of the records in `Experiment.records`.
        replace: as `masking.replace`.
    """

    name: str
    records: str
    replace: str = "0.8,0.1,0.1"


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
class Budget:
    """How long a variant is pre-trained: steps, tokens without padding, or seconds of train steps.

    Seconds are converted to steps before the first run of a variant, by timing a run of 64 steps. The runs
    count steps, and therefore resume exactly.
    """

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self):
        amounts = [self.steps, self.tokens, self.seconds]
        if sum(map(bool, amounts)) != 1 or not 0 < max(amounts) < np.inf:
            raise UserError(f"{self}: expected one of the three to be more than 0")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: title of the table and the plot.
        variants: the variants, in the order in which they run; one comes after the one that it starts from.
        measures: the measures taken of all variants.
        budget: the budget of pre-training; None if no variant is pre-trained.
        seeds: number of runs of each variant.
        vocabulary: flags of `bert-jax vocab`; None for the vocabulary of --model.
        records: flags of `bert-jax data`, by name.
        published: Markdown with the published figures and how they were obtained, for the end of the table.
    """

    title: str
    variants: Sequence[Variant]
    measures: Sequence[Measure]
    budget: Budget | None = None
    seeds: int = 3
    vocabulary: Sequence[str] | None = None
    records: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    published: str = ""

    def __post_init__(self):
        variants, measures = [each.name for each in self.variants], [each.name for each in self.measures]
        for names in (variants, [*measures, PRETRAINING]):
            if len({*map(_folder_name, names)}) < len(names):
                raise UserError(f"an experiment with {', '.join(names)}: expected different names")
        for number, variant in enumerate(self.variants):
            check_known("variant", [variant.start] if variant.start else [], variants[:number])
            named = [name for name in (*variant.tune, *(variant.measures or ())) if name != EVERY]
            check_known(f"variant {variant.name!r}: measure", named, measures)
        used = [each.records for each in self.variants if each.config]
        used += [each.records for each in self.measures if isinstance(each, HeldOut)]
        check_known("records", used, list(self.records))
        if any(each.config for each in self.variants) != bool(self.budget):
            raise UserError("an experiment has a budget if and only if one of its variants is pre-trained")

    def variant(self, name: str) -> Variant:
        """Returns the variant with this name."""
        return next(each for each in self.variants if each.name == name)

    def measures_of(self, variant: Variant) -> list[Measure]:
        """Returns the measures that are taken of a variant."""
        return [x for x in self.measures if variant.measures is None or x.name in variant.measures]

    @property
    def needs_checkpoint(self) -> bool:
        """Returns whether a variant starts from --model, or the vocabulary is that of --model."""
        takes = any(not (each.config or each.start) for each in self.variants)
        return takes or (self.vocabulary is None and bool(self.records))


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

_CHECKPOINTS, _LINES, _EVALUATIONS, _EVALUATION_BATCHES = 8, 50, 10, 32  # of a pre-training
_TIMED_STEPS = 64


class Sweep:
    """Runs an experiment in a directory; runs that have a result are not repeated.

    It is a context manager that holds the directory, so that no other sweep loses the results of this one.

    Args:
        experiment: the experiment, with the budget and the number of seeds to run.
        directory: its directory, a new one or one to resume.
        records: directories of records by their names in `Experiment.records`.
        data: folders with the data of fine-tunings, by name.
        checkpoint: the checkpoint that variants start from; "" for none.
        log: called with lines of progress.

    Raises:
        UserError: an input is missing, or the directory belongs to another experiment.
    """

    def __init__(
        self,
        experiment: Experiment,
        directory: str,
        records: Mapping[str, str] = {},
        data: Mapping[str, str] = {},
        checkpoint: str = "",
        log: Callable[[str], None] = print,
    ):
        self.experiment, self.directory = experiment, directory
        self._records, self._data, self._checkpoint, self._log = records, data, checkpoint, log
        self._check_inputs()
        self._path = os.path.join(directory, "results.json")
        self.results: list[dict[str, Any]] = []
        files.make_directory(directory)
        self._lock = Lock(directory, log=log)

    def __enter__(self) -> Sweep:
        self._lock.acquire()
        try:
            self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _read(self) -> None:
        """Reads the results of earlier calls, which must be of the same experiment."""
        described = json.loads(json.dumps(self._described()))
        if files.exists(self._path):
            stored = json_files.read(self._path, (dict, list))
            if not isinstance(stored, dict) or "experiment" not in stored:
                raise UserError(f"{self._path} is of an earlier version; choose another --workdir")
            for name, before in stored["experiment"].items():
                if before != described[name]:
                    raise UserError(
                        f"--workdir={self.directory} holds an experiment with the {name} {before!r}, and "
                        f"this one has {described[name]!r}; choose another --workdir"
                    )
            self.results = stored["results"]

    def _described(self) -> dict[str, Any]:
        experiment = self.experiment
        return {
            "title": experiment.title,
            "budget": dataclasses.asdict(experiment.budget) if experiment.budget else {},
            "vocabulary": experiment.vocabulary,
            "records": dict(experiment.records),
            "checkpoint": self._checkpoint,
        }

    def _check_inputs(self) -> None:
        if self.experiment.needs_checkpoint and not self._checkpoint:
            raise UserError("the experiment starts from a trained model; give --model=DIR")
        for variant in self.experiment.variants:
            for measure in self.experiment.measures_of(variant):
                if not isinstance(measure, Finetuning):
                    continue
                if measure.data and measure.data not in self._data:
                    raise UserError(
                        f"{measure.name}: give --data={measure.data}=DIR, the folder of its files"
                    )
                config = self._finetuning_config(measure, variant)
                for split, path in _split_files(config).items():
                    if not path or not all(map(table.exists, table.parts(path))):
                        raise UserError(f"{measure.name}: no such {split} file: {path or 'set data.train'}")
                # The metrics of a task that is configured without any may depend on its data.
                reported = metrics.listed(config.metrics) or registry.get(config.task).metrics
                check_known(f"{measure.name}: metric", measure.metrics if reported else (), reported)

    def run(self, variants: Sequence[str] = ()) -> None:
        """Runs the variants that have no results yet: all with the first seed, then all with the second one.

        Args:
            variants: names of the variants to run; all by default. One that another one starts from has to
                be among them, or to have run.
        """
        self._check_settings()
        for seed in range(self.experiment.seeds):
            for variant in self.experiment.variants:
                if not variants or variant.name in variants:
                    self._run_variant(variant, seed)
        self._draw()

    def result(self, variant: str, seed: int, measure: str) -> dict[str, float] | None:
        """Returns the scores of a measure, or None if there are none yet."""
        rows = (
            x for x in self.results if (x["variant"], x["seed"], x["measure"]) == (variant, seed, measure)
        )
        return next((row["scores"] for row in rows), None)

    def over_seeds(self, variant: str, measure: str) -> dict[str, list[float]]:
        """Returns the values of each metric of a measure, in the order of the seeds."""
        values: dict[str, list[float]] = {}
        for row in sorted(self.results, key=lambda row: row["seed"]):
            if (row["variant"], row["measure"]) == (variant, measure):
                for name, value in row["scores"].items():
                    values.setdefault(name, []).append(value)
        return values

    def model(self, name: str, seed: int) -> str:
        """Returns the model of a variant: a work directory, or --model."""
        variant = self.experiment.variant(name)
        if not variant.config:
            return self.model(variant.start, seed) if variant.start else self._checkpoint
        if self.result(name, seed, PRETRAINING) is None:
            raise UserError(f"the model of variant {name!r} has not been trained; add it to --variants")
        return os.path.join(self._folder(name, seed), PRETRAINING)

    def _folder(self, variant: str, seed: int) -> str:
        return os.path.join(self.directory, _folder_name(variant), f"seed-{seed}")

    def _add(self, variant: Variant, seed: int, measure: str, scores: Mapping[str, float]) -> None:
        """Adds a result, and writes all results and their table."""
        row = {"variant": variant.name, "seed": seed, "measure": measure, "scores": dict(scores)}
        row["settings"] = self._digest(variant, measure)
        self._lock.check()  # Another host may have taken over the directory.
        self.results.append(row)
        json_files.write(self._path, {"experiment": self._described(), "results": self.results})
        atomic.write_text(os.path.join(self.directory, "README.md"), self.report())
        listed = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self._log(f"{variant.name}, seed {seed}: {measure}: {listed}")

    # The settings of results

    def _check_settings(self) -> None:
        """Raises UserError if results have other settings than the experiment has now."""
        for row in self.results:
            names = [each.name for each in self.experiment.variants]
            measures = [PRETRAINING, TIMING, *(each.name for each in self.experiment.measures)]
            if row["variant"] in names and row["measure"] in measures:
                variant = self.experiment.variant(row["variant"])
                if row["settings"] != self._digest(variant, row["measure"]):
                    raise UserError(
                        f"--workdir={self.directory} has results of variant {variant.name!r}, "
                        f"{row['measure']}, with other settings, data or records than it has now; undo the "
                        "change, or choose another --workdir"
                    )

    def _digest(self, variant: Variant, name: str) -> str:
        """Returns a digest of what determines the scores of a measure or the pre-training, for all seeds."""
        if name in (PRETRAINING, TIMING):
            config = self._pretraining_config(variant, 0, 1000)
            settings = _identity(config, dict(config_fields.fields(pretrain_config.PretrainConfig())))
            settings |= {"share": variant.share, "explicit": variant.explicit_fields}
            settings["records"] = _records_digest(config.data.dir)
        else:
            measure = next(each for each in self.experiment.measures if each.name == name)
            if isinstance(measure, Finetuning):
                config = self._finetuning_config(measure, variant, init_from=self.model(variant.name, 0))
                settings = _identity(config, fields.declared(config.task))
                settings |= {f"files.{x}": table.digest(path) for x, path in _split_files(config).items()}
            else:
                settings = dataclasses.asdict(measure)
                if isinstance(measure, HeldOut):
                    settings["records"] = _records_digest(self._records[measure.records])
        text = json.dumps(settings, sort_keys=True)
        text = text.replace(os.path.join(self.directory, ""), "")  # which may move
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # A variant

    def _run_variant(self, variant: Variant, seed: int) -> None:
        if variant.config and self.result(variant.name, seed, PRETRAINING) is None:
            self._pretrain(variant, seed)
        for measure in self.experiment.measures_of(variant):
            if self.result(variant.name, seed, measure.name) is None:
                self._log(f"{variant.name}, seed {seed}: {measure.name}")
                scores = self._measure(measure, variant, seed, self.model(variant.name, seed))
                self._add(variant, seed, measure.name, scores)
                for name in ("checkpoints", "best"):  # the weights, which nothing needs any more
                    path = os.path.join(self._folder(variant.name, seed), _folder_name(measure.name), name)
                    shutil.rmtree(path, ignore_errors=True)

    def _measure(self, measure: Measure, variant: Variant, seed: int, model: str) -> dict[str, float]:
        if isinstance(measure, MinimalPairs):
            scorer = minimal_pairs.SentenceScorer(model, lambda line: None)
            _, summary = minimal_pairs.evaluate(scorer, minimal_pairs.generate())
            return {name: row["accuracy"] for name, row in summary.items()}
        if isinstance(measure, HeldOut):
            records = self._records[measure.records]
            quiet: dict[str, Any] = {"log": lambda line: None}
            scores = held_out.held_out(model, records, replace=measure.replace, rows=2000, **quiet)
            names = ("mlm_loss", "mlm_accuracy", "clm_loss", "clm_accuracy", "nsp_accuracy")
            return {name: scores[name] for name in names if name in scores}
        config = self._finetuning_config(measure, variant, init_from=model, seed=seed)
        workdir = os.path.join(self._folder(variant.name, seed), _folder_name(measure.name))
        scores = finetune.finetune(config, workdir)["scores"]
        check_known(f"{measure.name}: metric", measure.metrics, list(scores))
        return {name: scores[name] for name in measure.metrics}

    def _finetuning_config(
        self, measure: Finetuning, variant: Variant, **values: Any
    ) -> ml_collections.ConfigDict:
        config = config_files.load(measure.config, "finetune")
        config.eval.every, config.checkpoint.every = 10**6, 0
        if measure.data:
            values["data_dir"] = self._data[measure.data]
        for name, value in (values | dict(measure.fields) | variant.fields(measure.name)).items():
            fields.lookup(config, name)  # raises UserError for an unknown name
            fields.assign(config, name, value)
        return config

    def _pretraining_config(self, variant: Variant, seed: int, steps: int) -> ml_collections.ConfigDict:
        assert variant.config is not None
        run = Run(steps, seed, self._checkpoint, lambda name: self.model(name, seed))
        config = variant.config(run)
        config.steps, config.seed = steps, seed
        config.data.dir = self._records[variant.records]
        config.checkpoint.every, config.checkpoint.keep = max(1, steps // _CHECKPOINTS), 1
        config.log_every, config.eval.every = max(1, steps // _LINES), max(1, steps // _EVALUATIONS)
        config.eval.batches = config.eval.batches or _EVALUATION_BATCHES
        return config

    def _pretrain(self, variant: Variant, seed: int) -> None:
        steps = self._steps(variant, seed)
        config = self._pretraining_config(variant, seed, steps)
        self._log(f"{variant.name}, seed {seed}: pre-training, {counted(steps, 'step')}")
        directory = os.path.join(self._folder(variant.name, seed), PRETRAINING)
        pretrain.pretrain(config, directory, explicit=variant.explicit_fields)
        seconds, tokens = spent(directory)
        self._add(variant, seed, PRETRAINING, {"steps": steps, "tokens": tokens, "wall_seconds": seconds})

    def _steps(self, variant: Variant, seed: int) -> int:
        """Returns the number of steps of a variant that fit into its budget."""
        budget = self.experiment.budget
        assert budget is not None
        if budget.steps:
            return max(1, round(budget.steps * variant.share))
        if budget.tokens:
            config = self._pretraining_config(variant, seed, 1000)
            split = manifests.read(config.data.dir)["splits"]["train"]
            rows = int(budget.tokens * variant.share * split["rows"] / split["tokens"])
            sizes = pretrain_config.pretraining(config).batch_sizes
            return max(1, bisect.bisect(range(rows + 1), rows, key=sizes.total_before) - 1)
        if not self.over_seeds(variant.name, TIMING):
            self._add(variant, seed, TIMING, {"seconds_per_step": self._time(variant, seed)})
        (seconds, *_) = self.over_seeds(variant.name, TIMING)["seconds_per_step"]
        return max(1, int(budget.seconds * variant.share / seconds))

    def _time(self, variant: Variant, seed: int) -> float:
        """Returns the mean seconds of a step, of a run of `_TIMED_STEPS` steps in all of its phases."""
        config = self._pretraining_config(variant, seed, _TIMED_STEPS)
        if config.batch_ramp:
            raise UserError("a budget of seconds is for configs without batch_ramp; give --budget=tokens=N")
        config.checkpoint.every, config.eval.every, config.log_every = 0, 0, 8
        config.eval.batches = 1
        directory = os.path.join(self.directory, TIMING)
        shutil.rmtree(directory, ignore_errors=True)
        self._log(f"{variant.name}: timing {_TIMED_STEPS} steps")
        with contextlib.redirect_stdout(io.StringIO()):
            pretrain.pretrain(config, directory, explicit=variant.explicit_fields)
        lines = read_metrics(directory, "train")[1:]  # the first one contains the warm-up
        shutil.rmtree(directory, ignore_errors=True)
        return float(np.mean([line["step_seconds_p50"] for line in lines if "step_seconds_p50" in line]))

    # The report

    def _draw(self) -> None:
        """Plots the curves of the pre-trainings with the first seed, as far as there are any."""
        runs = {}
        for variant in self.experiment.variants:
            if variant.config and self.result(variant.name, 0, PRETRAINING) is not None:
                runs[variant.name] = read_metrics(self.model(variant.name, 0))  # it may have been deleted
        if runs := {name: rows for name, rows in runs.items() if rows}:
            curves.plot_metrics(runs, os.path.join(self.directory, "curves.png"), self.experiment.title)

    def report(self) -> str:
        """Returns the table of all results so far, as Markdown."""
        experiment = self.experiment
        return "\n\n".join([f"# {experiment.title}", *self._tables(), experiment.published.strip()]) + "\n"

    def _tables(self) -> Iterator[str]:
        experiment = self.experiment
        rows = []
        for variant in experiment.variants:
            if cost := self.over_seeds(variant.name, PRETRAINING):
                tokens, seconds = cost["tokens"][0] / 1e6, np.median(cost["wall_seconds"])
                rows.append([variant.name, f"{cost['steps'][0]:,.0f}", f"{tokens:,.2f}", f"{seconds:,.0f}"])
        if rows:
            yield _table(["variant", "steps", "million tokens", "seconds"], rows)
        pairs = itertools.product(experiment.measures, experiment.variants)
        columns = list(
            dict.fromkeys((x.name, metric) for x, y in pairs for metric in self.over_seeds(y.name, x.name))
        )
        rows = []
        for variant in experiment.variants:
            values = [self.over_seeds(variant.name, measure).get(metric, []) for measure, metric in columns]
            rows.append([variant.name, str(max(map(len, values), default=0)), *map(_mean, values)])
        yield _table(["variant", "runs", *(f"{measure}: {x}" for measure, x in columns)], rows)


def spent(directory: str) -> tuple[float, float]:
    """Returns the seconds of all train steps of a run, resumptions included, and their tokens."""
    step, seconds, tokens = 0, 0.0, 0.0
    for line in read_metrics(directory, "train"):
        took = (line["step"] - step) / line["steps_per_second"]
        step, seconds, tokens = line["step"], seconds + took, tokens + took * line["tokens_per_second"]
    return seconds, tokens


def _identity(config: ml_collections.ConfigDict, declared: Mapping[str, Field]) -> dict[str, Any]:
    """Returns the fields that determine what is computed, without those that differ between the runs."""
    free = {name for name, field in declared.items() if field.resume == "free"}
    return {name: x for name, x in config_fields.flatten(config) if name not in {*free, "seed", "steps"}}


def _records_digest(directories: str) -> str:
    return "+".join(manifests.read(path)["fingerprint"] for path in comma_lists.paths(directories))


def _split_files(config: ml_collections.ConfigDict) -> dict[str, str]:
    run = fields.of_run(config)
    return {split: split_file(run, registry.get(run.task), split) for split in ("train", "dev")}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}" if values else ""
