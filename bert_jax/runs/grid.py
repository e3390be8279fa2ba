"""Repeats a fine-tuning run with several seeds and over a grid of hyperparameters.

The result of one run on a small data set is not reliable: the score varies by several points with the seed,
and some runs fail to learn at all (Devlin et al. 2019, appendix A.3; Mosbach et al. 2021). Each run has its
own work directory, so a grid that was stopped can resume, and the runs share their compiled programs.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from bert_jax.convert import model_card
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, json_files, numerals
from bert_jax.parallel import distributed
from bert_jax.runs import finetune
from bert_jax.tasks import fields, metrics
from bert_jax.tasks.setup import split_file

SUMMARY_FILE = "summary.json"


def summarize(setting: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the statistics of one trial, a point of the grid, over its seeds.

    Args:
        setting: the name of its directory, such as `learning_rate=3e-05,batch_size=16`; "" without a grid.
        runs: the content of best.json for each seed, in order.

    Returns:
        `setting`; `seeds`, the number of runs; `degenerate`, the number of runs that predict the same for
        every example; `metric`, by which runs are compared; and `scores`: the median, best, worst and
        standard deviation of each metric, and the values of all runs.
    """
    scores = {}
    for name in runs[0]["scores"]:
        values = np.asarray([run["scores"][name] for run in runs])
        best, worst = (np.min, np.max) if name in metrics.LOWER_IS_BETTER else (np.max, np.min)
        scores[name] = {
            "median": float(np.median(values)),
            "best": float(best(values)),
            "worst": float(worst(values)),
            "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
            "all": values.tolist(),
        }
    degenerate = sum(bool(run.get("degenerate")) for run in runs)
    counts = {"setting": setting, "seeds": len(runs), "degenerate": degenerate}
    return {**counts, "metric": runs[0]["metric"], "scores": scores}


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses texts like "optimizer.learning_rate=5e-5,3e-5,2e-5".

    If there are semicolons, they separate the values, which may then have commas.

    Returns:
        {field: texts of values}.

    Raises:
        UserError: a text has another form, or a field occurs twice.
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values or field in grid:
            raise UserError(f"--grid={text}: expected a field once, such as batch_size=16,32")
        grid[field] = values.split(";" if ";" in values else ",")
    return grid


def run_all(
    config: ml_collections.ConfigDict,
    directory: str,
    seeds: int,
    grid: Mapping[str, Sequence[Any]],
    log: Callable[[str], None] = print,
    *,
    explicit: Collection[str] = (),
    **options: Any,
) -> list[dict[str, Any]]:
    """Fine-tunes once for each seed and each point of the grid.

    It also writes the summaries of the trials to summary.json in `directory`, and a table of them to
    README.md.

    Args:
        config: see `finetune.finetune`. The seeds are `config.seed`, `config.seed + 1` and so on.
        directory: the directory of the work directories of all runs.
        seeds: the number of seeds.
        grid: {field: values}; see `parse_grid`.
        log: called with lines of progress, in process 0 of the run.
        explicit: see `finetune.finetune`; fields of the grid are among them.
        **options: other arguments of `finetune.finetune`.

    Returns:
        The summaries of the trials, sorted by their median score, the best first; see `summarize`.

    Raises:
        UserError: see `finetune.finetune`; also if the configuration does not have a field of the grid, or
            there is no evaluation file.
    """
    log = distributed.log_of_primary(log)
    if seeds < 1:
        raise UserError(f"--seeds={seeds}: expected 1 or more")
    explicit = {*explicit, *(field.removeprefix("model.") for field in grid if field.startswith("model."))}
    queue = _configurations(config, seeds, grid)
    _check(queue, directory, explicit)
    summaries: list[dict[str, Any]] = []
    for name, configs in queue.items():
        runs: list[dict[str, Any]] = []
        for each in configs:
            path = directory_of(directory, name, each)
            log(f"run {len(summaries) * seeds + len(runs) + 1} of {len(queue) * seeds}: {path}")
            runs.append(finetune.finetune(each, path, log, explicit=explicit, **options))
        summaries.append(summarize(name, runs))
    metric = summaries[0]["metric"]
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    summaries.sort(key=lambda summary: -sign * summary["scores"][metric]["median"])
    if jax.process_index():
        return summaries  # Only process 0 writes files.
    best = best_run(directory, summaries[0], config)
    for name, content in (
        (SUMMARY_FILE, json.dumps(summaries, indent=2) + "\n"),
        (model_card.FILE, model_card.of_repeats(best, summaries)),
    ):
        atomic.write_text(os.path.join(directory, name), content)
    return summaries


def _configurations(
    config: ml_collections.ConfigDict, seeds: int, grid: Mapping[str, Sequence[Any]]
) -> dict[str, list[ml_collections.ConfigDict]]:
    """Returns the configurations of all runs by the names of their settings, in the order of the seeds.

    Args:
        config: as of `run_all`.
        seeds: as of `run_all`.
        grid: as of `run_all`.

    Raises:
        UserError: the configuration does not have a field of the grid, or a value is of another type.
    """
    points = {field: [_of_field(config, field, value) for value in values] for field, values in grid.items()}
    found: dict[str, list[ml_collections.ConfigDict]] = {}
    for values in itertools.product(*points.values()):
        chosen = dict(zip(points, values, strict=True))
        found[setting_of(chosen)] = runs = []
        for number in range(seeds):
            run = ml_collections.ConfigDict(config.to_dict())
            for field, value in chosen.items():
                fields.assign(run, field, value)
            run.seed = config.seed + number
            runs.append(run)
    return found


def _check(
    queue: Mapping[str, Sequence[ml_collections.ConfigDict]], directory: str, explicit: Collection[str]
) -> None:
    """Raises UserError if a run is not valid, or the runs cannot be compared, before the first of them.

    Args:
        queue: a result of `_configurations`.
        directory: as of `run_all`.
        explicit: as of `run_all`.
    """
    first_metrics: dict[str, str] = {}
    for name, configs in queue.items():
        fields.finetuning(configs[-1])  # the seeds ascend, and the last one may be too large
        path = directory_of(directory, name, configs[0])
        complete, task, _ = finetune.prepare(configs[0], path, explicit=explicit)
        if not split_file(complete, task.spec, "dev"):
            raise UserError("a grid compares its runs on an evaluation file; give --config.data.eval=FILE")
        first_metrics[name] = task.metrics[0]
    if len(set(first_metrics.values())) > 1:
        found = ", ".join(f"{metric} of {name}" for name, metric in first_metrics.items())
        raise UserError(f"a grid compares its runs by their first metric, and has {found}; give all the same")


def setting_of(point: Mapping[str, Any]) -> str:
    """Returns the name of a point of the grid, which is also that of its directory.

    The slashes of a value, such as a path or a URL, are written as %2F, and its percent signs as %25.

    Args:
        point: {field: value}.
    """
    values = {field: str(value).replace("%", "%25").replace("/", "%2F") for field, value in point.items()}
    return ",".join(f"{field.split('.')[-1]}={value}" for field, value in values.items())


def directory_of(directory: str, name: str, config: ml_collections.ConfigDict) -> str:
    """Returns the work directory of the run of a setting with the seed of a configuration."""
    return os.path.join(directory, name, _seed_directory(config.seed))


def best_run(directory: str, summary: Mapping[str, Any], config: ml_collections.ConfigDict) -> str:
    """Returns the work directory of the best run of a trial.

    Args:
        directory: the directory of the grid.
        summary: the summary of the trial; see `summarize`.
        config: the configuration of the grid, with the first seed.
    """
    metric = summary["metric"]
    best = np.argmin if metric in metrics.LOWER_IS_BETTER else np.argmax
    seed = config.seed + int(best(summary["scores"][metric]["all"]))
    return os.path.join(directory, summary["setting"], _seed_directory(seed))


def read_summary(directory: str) -> dict[str, Any] | None:
    """Returns the result of the best trial of a grid, or None if the directory has no summary.json.

    Returns:
        {"scores": {metric: median}, "run": the work directory of one of its runs}.

    Raises:
        UserError: summary.json is not valid, or the work directories of the trial do not exist.
    """
    path = os.path.join(directory, SUMMARY_FILE)
    if not files.exists(path):
        return None
    trials = json_files.read(path, [{"setting": str, "scores": {str: {"median": (float, None)}}}])
    best: dict[str, Any] = trials[0] if trials else {"setting": ""}
    folder = os.path.join(directory, best["setting"].replace("\0", ""))
    runs = [os.path.join(folder, name) for name in files.names(folder) if name.startswith("seed-")]
    if not trials or not runs:
        raise UserError(
            f"{path}: the work directories of its best setting are not beside it; expected the summary.json "
            "that --seeds or --grid wrote there"
        )
    return {"scores": {name: one["median"] for name, one in best["scores"].items()}, "run": runs[0]}


def table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of a table: the statistics over the seeds for each trial and metric.

    Without a grid, the table has no column of settings.
    """
    named = [found["setting"] for found in summaries if found["setting"]]
    width = max(map(len, named), default=0)

    def setting(text: str) -> str:
        return f"{text:<{max(width, 7)}}  " if named else ""

    lines = [f"{setting('setting')}{'metric':<18}  median    best   worst    std  seeds  degenerate"]
    for found in summaries:
        for name, one in found["scores"].items():
            lines.append(
                f"{setting(found['setting'])}{name:<18}  {one['median']:.4f}  {one['best']:.4f}  "
                f"{one['worst']:.4f}  {one['deviation']:.3f}  {found['seeds']:>5}  {found['degenerate']:>10}"
            )
    return lines


def _seed_directory(seed: int) -> str:
    return f"seed-{seed}"


def _of_field(config: ml_collections.ConfigDict, field: str, value: Any) -> Any:
    """Returns a value of the grid, a text or not, as one of a field of the configuration."""
    if field == "seed":
        raise UserError("--grid=seed=...: --seeds=N runs with N seeds, from config.seed up")
    try:
        old = fields.lookup(config, field)
    except UserError as error:
        raise UserError(f"--grid={field}=...: {error}") from None
    if isinstance(value, str) and not isinstance(old, str):
        value = _value(value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # A field without a value has no type to compare with, and is checked as any other one.
    if old is not None and type(old) is not type(value):
        raise UserError(
            f"--grid={field}={value}: expected values of the type {type(old).__name__}, such as {old!r}"
        )
    return value


def _value(text: str) -> Any:
    for convert in (int, float):
        try:
            return numerals.parse(text, convert)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)
