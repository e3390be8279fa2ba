"""Experiments: variants that are trained and evaluated with several seeds, and grids of a fine-tuning.

A file in configs/experiments/ defines `get_experiment()`, which returns an `Experiment`; `bert-jax sweep`
runs it. `grid` returns an experiment whose variants are the points of a grid of one fine-tuning, for
`bert-jax finetune --seeds` and `--grid`. docs/experiments.md describes the directory; that of a grid also
has summary.json, the statistics of each point, the best first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import itertools
import json
import os
import re
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
from bert_jax.io.wording import counted, some
from bert_jax.parallel import collective, distributed
from bert_jax.runs import finetune, pretrain
from bert_jax.settings import config_fields, config_files, pretrain_config
from bert_jax.tasks import fields, metrics, registry, table
from bert_jax.tasks.setup import split_file
from bert_jax.training.metrics import read_metrics
from bert_jax.workdir.lock import Lock

SUMMARY_FILE = "summary.json"
EVERY = "*"  # in `Variant.tune`: all fine-tunings
PRETRAINING, TIMING = "pretraining", "timing"  # used like names of measures
DEGENERATE = "degenerate"  # the score of a run of a grid that predicts the same for every example
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
    """What the config of a pre-training may depend on: its steps, --model, and `model(EARLIER VARIANT)`."""

    steps: int
    checkpoint: str
    model: Callable[[str], str]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the variants that an experiment compares.

    Attributes:
        name: name in tables and of its folder.
        config: the config of its pre-training, by name, or a function (run) that returns it; "" for a variant
            that starts from the model of another one or --model. The sweep sets steps, seed and records, and
            the intervals at which the run is logged, saved and evaluated.
        records: name of its records in `Experiment.records`.
        fields: fields of the config to change, by their dotted names. A model that starts from `init_from`
            keeps its fields of `config.model`.
        share: fraction of the budget that it may spend.
        start: without `config`, the variant whose model it starts from; "" for --model.
        tune: fields of fine-tunings to change in this variant, by the name of the measure or `EVERY`.
        measures: names of the measures of this variant; None for all.
    """

    name: str
    config: str | Callable[[Run], ml_collections.ConfigDict] = ""
    records: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    share: float = 1.0
    start: str = ""
    tune: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    measures: Sequence[str] | None = None

    def pretraining(self, run: Run) -> ml_collections.ConfigDict:
        """Returns the config of its pre-training."""
        config = self.config(run) if callable(self.config) else config_files.load(self.config, "pretrain")
        config.update_from_flattened_dict(self.fields)
        return config


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The losses and accuracies of pre-training on 2,000 held-out records, with equal masks for all variants.

    `records` is a name in `Experiment.records`, and `replace` is as `masking.replace`.
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
        config: a config of fine-tuning, or its name, such as "finetune/glue:stsb".
        data: name of the folder with its data, as in --data=NAME=DIR; "" if the config names the files.
        metrics: the metrics to report; empty for all.
        fields: fields of the config to change, by their dotted names.
    """

    name: str
    config: str | ml_collections.ConfigDict
    data: str = ""
    metrics: Sequence[str] = ()
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def configured(self, variant: Variant, **values: Any) -> ml_collections.ConfigDict:
        """Returns the config for a variant, with additional fields set to the given values."""
        config = self.config
        config = (
            config_files.load(config, "finetune")
            if isinstance(config, str)
            else config.copy_and_resolve_references()
        )
        values |= {**self.fields, **variant.tune.get(EVERY, {}), **variant.tune.get(self.name, {})}
        for name, value in values.items():
            fields.lookup(config, name)  # raises UserError for an unknown name
            fields.assign(config, name, value)
        return config


Measure = HeldOut | MinimalPairs | Finetuning


def finetuning(task: str, fields: Mapping[str, Any] = {}, rate: float = 0.0, name: str = "") -> Finetuning:
    """Returns the fine-tuning on one of `_TASKS`; of SST-2, on the first 10,000 rows.

    `fields` are changed, by their dotted names. With `rate`, a peak learning rate, it is three epochs of Adam
    with bias correction and a decay that starts after the warm-up, so that fewer runs fail; with 0, it is
    finetune/hour, for small models. `name` is of the measure; "" for that of the task.
    """
    config, of_hour, data, metric = _TASKS[task]
    changed: dict[str, Any] = {"eval.every": 10**6, "checkpoint.every": 0}
    if rate:
        changed |= {"optimizer.name": "adamw_bias_corrected", "optimizer.schedule": "warmup_then_decay"}
        changed |= {"optimizer.learning_rate": rate, "epochs": 3.0}
    if task == "SST-2":
        changed["train_rows"], name = 10_000, name or SST_2
    return Finetuning(
        name or task, config if rate else f"finetune/hour:{of_hour}", data, (metric,), {**changed, **fields}
    )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: title of the table.
        variants: the variants in running order; a variant comes after the one that it starts from.
        measures: the measures taken of all variants.
        budget: how long a variant is pre-trained: "steps=N", "tokens=N" without padding, or "seconds=N" of
            train steps; "" if no variant is pre-trained. Seconds are converted to steps before the first run
            of a variant, by timing a run of 64 steps: the runs count steps, and therefore resume exactly.
        seeds: number of runs of each variant.
        vocabulary: flags of `bert-jax vocab`; None for the vocabulary of --model.
        records: flags of `bert-jax data`, by name.
        published: Markdown with the published figures and how they were obtained, for the end of the table.
        first_seed: the seed of the first run of each variant.
        is_grid: whether it is a grid: the runs keep their weights, and the best run is selected.
    """

    title: str
    variants: Sequence[Variant]
    measures: Sequence[Measure]
    budget: str = ""
    seeds: int = 3
    vocabulary: Sequence[str] | None = None
    records: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    published: str = ""
    first_seed: int = 0
    is_grid: bool = False

    def __post_init__(self):
        if self.seeds < 1:
            raise UserError(f"--seeds={self.seeds}: expected 1 or more")
        variants, measures = [each.name for each in self.variants], [each.name for each in self.measures]
        for names in (variants, [*measures, PRETRAINING]):
            if len({*map(_hyphenated, names)}) < len(names):
                raise UserError(f"the names of variants and measures must differ, got {', '.join(names)}")
        for number, variant in enumerate(self.variants):
            check_known("variant", [variant.start] if variant.start else [], variants[:number])
            named = [name for name in (*variant.tune, *(variant.measures or ())) if name != EVERY]
            check_known(f"variant {variant.name!r}: measure", named, measures)
        pretrains = any(each.config for each in self.variants)
        if not re.fullmatch(r"(steps|tokens|seconds)=0*[1-9]\d*" if pretrains else "", self.budget):
            expected = "seconds=N, tokens=N or steps=N" if pretrains else "none without pre-training"
            raise UserError(f"--budget={self.budget}: expected {expected}")

    def variant(self, name: str) -> Variant:
        """Returns the variant with this name."""
        return next(each for each in self.variants if each.name == name)

    def measures_of(self, variant: Variant) -> list[Measure]:
        """Returns the measures that are taken of a variant."""
        return [x for x in self.measures if variant.measures is None or x.name in variant.measures]

    @property
    def needs_checkpoint(self) -> bool:
        """Returns whether a variant starts from --model, or uses its vocabulary."""
        takes = any(not (each.config or each.start) for each in self.variants)
        return takes or (self.vocabulary is None and bool(self.records))


def check_known(what: str, names: Collection[str], known: Sequence[str]) -> None:
    """Raises UserError for an unknown name; the message begins with `what`."""
    for name in names:
        if name not in known:
            raise UserError(f"{what} {name!r} is unknown; expected one of {', '.join(known) or 'none'}")


def _hyphenated(name: str) -> str:
    return name.replace(" ", "-").replace("/", "-")


def load_experiment(name: str) -> Experiment:
    """Returns the experiment that NAME[:ARG], with or without "experiments/", or PATH[:ARG] names."""
    if f"experiments/{config_files.split(name)[0]}" in config_files.names():
        name = f"experiments/{name}"
    return config_files.call(name, "get_experiment", Experiment)


def grid(config: ml_collections.ConfigDict, points: Sequence[str] = (), seeds: int = 1) -> Experiment:
    """Returns the experiment whose variants are the points of a grid of one fine-tuning.

    A point is fields and their values, such as "optimizer.learning_rate=5e-5,3e-5". If there are semicolons,
    they separate the values, which may then contain commas. The seeds are `config.seed`, `config.seed + 1`
    and so on. It raises UserError if a field is unknown or given twice, or if a value has another type.
    """
    values: dict[str, list[Any]] = {}
    for text in points:
        field, _, listed = text.partition("=")
        if not listed or field in values or field == "seed":
            raise UserError(f"--grid={text}: expected each field once, such as batch_size=16,32, and no seed")
        values[field] = [_typed(config, field, x) for x in listed.split(";" if ";" in listed else ",")]
    variants = []
    for chosen in itertools.product(*values.values()):
        point = dict(zip(values, chosen, strict=True))
        # The name is also the name of a folder, so slashes of a path or a URL are escaped.
        texts = (str(value).replace("%", "%25").replace("/", "%2F") for value in chosen)
        name = ",".join(f"{field.split('.')[-1]}={text}" for field, text in zip(values, texts, strict=True))
        variants.append(Variant(name, tune={EVERY: point}))
    return Experiment(
        f"Fine-tuning: {config.task}",
        variants,
        [Finetuning(config.task, config)],
        seeds=seeds,
        first_seed=config.seed,
        is_grid=True,
    )


def _typed(config: ml_collections.ConfigDict, field: str, text: str) -> Any:
    """Converts a value of the grid to the type of a field of the configuration."""
    fields.lookup(config, field)  # raises UserError for an unknown name
    declared, value = fields.declared()[field], text
    if declared.type not in ("str", "regex"):
        with contextlib.suppress(ValueError):
            value = json.loads(text)
    config_fields.check(field, value, declared)
    return float(value) if declared.type == "float" and value is not None else value


def read_summary(directory: str) -> dict[str, Any] | None:
    """Returns {"scores": {metric: median}, "run": work directory} of the best point; None without a grid."""
    path = os.path.join(directory, SUMMARY_FILE)
    if not files.exists(path):
        return None
    points = json_files.read(path, [{"setting": str, "scores": {str: {"median": (float, None)}}}])
    folder = os.path.join(directory, points[0]["setting"])
    runs = [os.path.join(folder, name) for name in files.names(folder) if name.startswith("seed-")]
    scores = {name: one["median"] for name, one in points[0]["scores"].items()}
    return {"scores": scores, "run": runs[0] if runs else folder}


# Running an experiment

_CHECKPOINTS, _LINES, _EVALUATIONS, _EVALUATION_BATCHES = 8, 50, 10, 32  # of a pre-training
_TIMED_STEPS = 64


class Sweep:
    """Runs an experiment in a directory; runs that have a result are not repeated.

    `records` and `data` are directories by their names in the experiment, and `checkpoint` is --model or "".
    `explicit` and `options` are arguments of `finetune.finetune`. It raises UserError if an input is missing
    or not valid; see `finetune.prepare`.
    """

    def __init__(
        self,
        experiment: Experiment,
        directory: str,
        records: Mapping[str, str] = {},
        data: Mapping[str, str] = {},
        checkpoint: str = "",
        log: Callable[[str], None] = print,
        explicit: Collection[str] = (),
        **options: Any,
    ):
        self.experiment, self.directory = experiment, directory
        self._records, self._data, self._checkpoint = records, data, checkpoint
        self._log, self._explicit, self._options = distributed.log_of_primary(log), explicit, options
        self._path = os.path.join(directory, "results.json")
        self._lock = Lock(directory, log=log)
        self.results: list[dict[str, Any]] = []
        with collective.failing_together():
            firsts = {first for variant in experiment.variants for first in self._check_inputs(variant)}
            if experiment.is_grid and len(firsts) > 1:  # the first metric ranks the runs
                raise UserError(f"all runs of a grid need the same first metric, got {some(firsts)}")

    def _check_inputs(self, variant: Variant) -> Iterator[str]:
        """Yields the first metric of each fine-tuning of a variant, after checking that it has its inputs."""
        for measure in self.experiment.measures_of(variant):
            if not isinstance(measure, Finetuning):
                continue
            if measure.data and measure.data not in self._data:
                raise UserError(f"{measure.name} needs --data={measure.data}=DIR, the directory of its files")
            is_first = not (variant.config or variant.start)
            config = self._finetuning_config(measure, variant, self._checkpoint if is_first else "")
            for field, path in _split_files(config).items():
                if not path or not all(map(files.exists, table.parts(path))):
                    raise UserError(f"{measure.name}: {field}={path}: no such file")
            # If a task has no configured metrics, its metrics may depend on its data.
            reported = comma_lists.names(config.metrics) or registry.get(config.task).metrics
            check_known(f"{measure.name}: metric", measure.metrics if reported else (), reported)
            if not is_first:
                continue
            config.seed = self.experiment.first_seed + self.experiment.seeds - 1  # it may be too large
            folder = self._folder(variant.name, self.experiment.first_seed, measure.name)
            _, task, _ = finetune.prepare(config, folder, explicit=self._explicit_of(variant))
            yield task.metrics[0]

    def run(self, variants: Sequence[str] = ()) -> None:
        """Runs the variants, by default all, that have no results yet: all with one seed, then the next.

        It raises UserError if another sweep uses the directory, if that has results with other settings, or
        if a variant starts from one that has not run.
        """
        with contextlib.ExitStack() as cleanup:
            with collective.failing_together():
                if jax.process_index() == 0:
                    self._lock.acquire()
                    cleanup.callback(self._lock.release)
                self.results = collective.call_in_primary(self._read)
            for seed in range(self.experiment.first_seed, self.experiment.first_seed + self.experiment.seeds):
                for variant in self.experiment.variants:
                    if not variants or variant.name in variants:
                        self._run_variant(variant, seed)
            if self.experiment.is_grid and jax.process_index() == 0:
                json_files.write(os.path.join(self.directory, SUMMARY_FILE), self.summaries())

    def scores(self, variant: str, measure: str) -> dict[int, dict[str, float]]:
        """Returns {seed: scores} of a measure, in the order of the seeds."""
        rows = [row for row in self.results if (row["variant"], row["measure"]) == (variant, measure)]
        return {row["seed"]: row["scores"] for row in sorted(rows, key=lambda row: row["seed"])}

    def model(self, name: str, seed: int) -> str:
        """Returns the model of a variant: a work directory, or --model."""
        variant = self.experiment.variant(name)
        if not variant.config:
            return self.model(variant.start, seed) if variant.start else self._checkpoint
        if seed not in self.scores(name, PRETRAINING):
            raise UserError(f"variant {name!r} has not been trained; add --variants={name}")
        return self._folder(name, seed, PRETRAINING)

    def _folder(self, variant: str, seed: int, measure: str) -> str:
        if self.experiment.is_grid:
            return os.path.join(self.directory, variant, f"seed-{seed}")
        return os.path.join(self.directory, _hyphenated(variant), f"seed-{seed}", _hyphenated(measure))

    # Results

    def _read(self) -> list[dict[str, Any]]:
        results = (
            json_files.read(self._path, {"results": [dict]})["results"] if files.exists(self._path) else []
        )
        variants = {each.name: each for each in self.experiment.variants}
        measures = [PRETRAINING, TIMING, *(each.name for each in self.experiment.measures)]
        for row in results:
            variant = variants.get(row["variant"]) if row["measure"] in measures else None
            if variant and row["settings"] != self._digest(variant, row["measure"]):
                raise UserError(
                    f"--workdir={self.directory} has results of variant {variant.name!r}, {row['measure']}, "
                    "with other settings or data; choose another --workdir"
                )
        return results

    def _digest(self, variant: Variant, name: str) -> str:
        """Returns a digest of everything that determines the scores or the pre-training, for all seeds."""
        measure = next((each for each in self.experiment.measures if each.name == name), None)
        settings: dict[str, Any] = {"checkpoint": self._checkpoint, "budget": self.experiment.budget}
        settings |= {"start": variant.start, "share": variant.share, "explicit": _of_model(variant.fields)}
        for directory in self._records.values():
            settings[directory] = [
                manifests.read(path)["fingerprint"] for path in comma_lists.paths(directory)
            ]
        config, declared = ml_collections.ConfigDict(), {}
        if measure is None:
            config = self._pretraining_config(variant, self.experiment.first_seed, 1000)
            declared = dict(config_fields.fields(pretrain_config.PretrainConfig()))
        elif isinstance(measure, Finetuning):
            config, declared = self._finetuning_config(measure, variant), fields.declared()
            settings |= {field: table.digest(path) for field, path in _split_files(config).items()}
        else:
            settings |= dataclasses.asdict(measure)
        for field, value in config_fields.flatten(config):
            if field not in ("seed", "steps") and declared[field].resume != "free":
                settings[f"config.{field}"] = value
        text = json.dumps(settings, sort_keys=True)
        text = text.replace(os.path.join(self.directory, ""), "")  # the directory may move
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _add(self, variant: Variant, seed: int, measure: str, scores: Mapping[str, float]) -> None:
        row = {"variant": variant.name, "seed": seed, "measure": measure, "scores": dict(scores)}
        self.results.append(row)
        with collective.failing_together():
            if jax.process_index() == 0:
                row["settings"] = self._digest(variant, measure)
                self._lock.check()  # Another host may have taken over the directory.
                json_files.write(self._path, {"results": self.results})
                atomic.write_text(os.path.join(self.directory, "README.md"), self.report())
        listed = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self._log(f"{_label(variant.name)}, seed {seed}: {measure}: {listed}")

    # A variant

    def _run_variant(self, variant: Variant, seed: int) -> None:
        if variant.config and seed not in self.scores(variant.name, PRETRAINING):
            self._pretrain(variant, seed)
        for measure in self.experiment.measures_of(variant):
            if seed not in self.scores(variant.name, measure.name):
                self._log(f"{_label(variant.name)}, seed {seed}: {measure.name}")
                self._add(variant, seed, measure.name, self._measure(measure, variant, seed))

    def _measure(self, measure: Measure, variant: Variant, seed: int) -> dict[str, float]:
        model = self.model(variant.name, seed)
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
        config = self._finetuning_config(measure, variant, model)
        config.seed = seed
        folder = self._folder(variant.name, seed, measure.name)
        explicit = self._explicit_of(variant)
        best = finetune.finetune(config, folder, self._log, explicit=explicit, **self._options)
        if self.experiment.is_grid:
            metric, scores = best["metric"], best["scores"]
            return {metric: scores[metric], **scores, DEGENERATE: float(best.get(DEGENERATE, False))}
        for name in ("checkpoints", "best"):  # the weights, which are no longer needed
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        return {name: best["scores"][name] for name in measure.metrics or best["scores"]}

    def _finetuning_config(
        self, measure: Finetuning, variant: Variant, model: str = ""
    ) -> ml_collections.ConfigDict:
        values = {"init_from": model, "data_dir": self._data.get(measure.data, "")}
        return measure.configured(variant, **{name: value for name, value in values.items() if value})

    def _explicit_of(self, variant: Variant) -> set[str]:
        return {*self._explicit, *(name for changed in variant.tune.values() for name in _of_model(changed))}

    def _pretraining_config(self, variant: Variant, seed: int, steps: int) -> ml_collections.ConfigDict:
        run = Run(steps, self._checkpoint, lambda name: self.model(name, seed))
        config = variant.pretraining(run)
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
        directory = self._folder(variant.name, seed, PRETRAINING)
        pretrain.pretrain(config, directory, explicit=_of_model(variant.fields))
        seconds, tokens = spent(directory)
        self._add(variant, seed, PRETRAINING, {"steps": steps, "tokens": tokens, "wall_seconds": seconds})

    def _steps(self, variant: Variant, seed: int) -> int:
        unit, _, number = self.experiment.budget.partition("=")
        amount = int(number) * variant.share
        if unit == "steps":
            return max(1, round(amount))
        config = self._pretraining_config(variant, seed, 1000)
        if config.batch_ramp:
            raise UserError("a config with batch_ramp needs --budget=steps=N")
        if unit == "tokens":
            split = manifests.read(config.data.dir)["splits"]["train"]
            return max(1, int(amount * split["rows"] / split["tokens"] / config.batch_size))
        if not self.scores(variant.name, TIMING):
            self._add(variant, seed, TIMING, {"seconds_per_step": self._time(variant, seed)})
        (timed, *_) = self.scores(variant.name, TIMING).values()
        return max(1, int(amount / timed["seconds_per_step"]))

    def _time(self, variant: Variant, seed: int) -> float:
        """Returns the mean seconds per step of a run of `_TIMED_STEPS` steps with all of its phases."""
        config = self._pretraining_config(variant, seed, _TIMED_STEPS)
        config.checkpoint.every, config.eval.every, config.log_every = 0, 0, 8
        config.eval.batches = 1
        directory = os.path.join(self.directory, TIMING)
        shutil.rmtree(directory, ignore_errors=True)
        self._log(f"{variant.name}: timing {_TIMED_STEPS} steps")
        with contextlib.redirect_stdout(io.StringIO()):
            pretrain.pretrain(config, directory, explicit=_of_model(variant.fields))
        lines = read_metrics(directory, "train")[1:]  # the first one contains the warm-up
        shutil.rmtree(directory, ignore_errors=True)
        return float(np.mean([line["step_seconds_p50"] for line in lines if "step_seconds_p50" in line]))

    # The report

    def report(self) -> str:
        """Returns the table of the results so far, as Markdown: means and standard deviations."""
        experiment = self.experiment
        scores = {
            variant.name: {
                f"{measure}: {metric}": values
                for measure in (PRETRAINING, *(each.name for each in experiment.measures))
                for metric, values in _by_metric(self.scores(variant.name, measure)).items()
            }
            for variant in experiment.variants
        }
        columns = list(dict.fromkeys(column for each in scores.values() for column in each))
        lines = [["variant", "runs", *columns], ["---"] * (2 + len(columns))]
        for name, each in scores.items():
            runs = max(map(len, each.values()), default=0)
            lines.append([_label(name), str(runs), *(_mean(each.get(column, [])) for column in columns)])
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"# {experiment.title}\n\n{table}\n\n{experiment.published.strip()}\n"

    def summaries(self) -> list[dict[str, Any]]:
        """Returns the statistics of each point of a grid, sorted by the median of the first metric.

        An entry has the name of the point, the scores, and `best`, the work directory of its best run.
        """
        found: list[tuple[float, dict[str, Any]]] = []
        (measure,) = self.experiment.measures
        for variant in self.experiment.variants:
            scores = self.scores(variant.name, measure.name)
            values = _by_metric(scores)
            metric = next(iter(values))
            sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
            best = max(scores, key=lambda seed: sign * scores[seed][metric])
            statistics: dict[str, dict[str, Any]] = {
                name: {
                    "median": float(np.median(x)),
                    "mean": float(np.mean(x)),
                    "deviation": _deviation(x),
                    "all": x,
                }
                for name, x in values.items()
            }
            entry = {"setting": variant.name, "scores": statistics}
            entry["best"] = self._folder(variant.name, best, measure.name)
            found.append((-sign * statistics[metric]["median"], entry))
        return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


def _by_metric(scores: Mapping[int, Mapping[str, float]]) -> dict[str, list[float]]:
    """Returns the values of each metric, in the order of the seeds."""
    return {name: [each[name] for each in scores.values()] for name in next(iter(scores.values()), ())}


def spent(directory: str) -> tuple[float, float]:
    """Returns the seconds of all train steps of a run, resumptions included, and their tokens."""
    step, seconds, tokens = 0, 0.0, 0.0
    for line in read_metrics(directory, "train"):
        took = (line["step"] - step) / line["steps_per_second"]
        step, seconds, tokens = line["step"], seconds + took, tokens + took * line["tokens_per_second"]
    return seconds, tokens


def _of_model(names: Collection[str]) -> list[str]:
    return sorted(name.removeprefix("model.") for name in names if name.startswith("model."))


def _split_files(config: ml_collections.ConfigDict) -> dict[str, str]:
    run = fields.of_run(config)
    splits = {"data.train": "train", "data.eval": "dev"}
    return {field: split_file(run, registry.get(run.task), split) for field, split in splits.items()}


def _label(variant: str) -> str:
    return variant or "all runs"


def _deviation(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _mean(values: Sequence[float]) -> str:
    deviation = f" ± {_deviation(values):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{deviation}" if values else ""
