"""Repeats a fine-tuning run with several seeds and over a grid of hyperparameters.

The result of one run on a small data set is not reliable: the score varies by several points with the seed,
and some runs fail to learn at all (Devlin et al. 2019, appendix A.3; Mosbach et al. 2021).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic, files, json_files
from bert_jax.parallel import distributed
from bert_jax.runs import finetune
from bert_jax.tasks import fields, metrics
from bert_jax.tasks.setup import split_file

SUMMARY_FILE = "summary.json"


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
    """Fine-tunes once for each seed and each point of a grid, each in its own work directory.

    It also writes the summaries of the points to summary.json in `directory`, and a table of them to
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
    for name, (first, *_, last) in ((name, [*runs, runs[-1]]) for name, runs in queue.items()):
        fields.finetuning(last)  # the seeds ascend, and the last one may be too large
        complete, task, _ = finetune.prepare(first, directory_of(directory, name, first), explicit=explicit)
        firsts.add(task.metrics[0])
        if not split_file(complete, task.spec, "dev") or len(firsts) > 1:
            raise UserError(
                "a grid compares its runs by their first metric on an evaluation file; give "
                "--config.data.eval=FILE, and all the same metrics"
            )
    summaries: list[dict[str, Any]] = []
    for name, runs in queue.items():
        found: list[dict[str, Any]] = []
        for each in runs:
            path = directory_of(directory, name, each)
            log(f"run {len(summaries) * seeds + len(found) + 1} of {len(queue) * seeds}: {path}")
            found.append(finetune.finetune(each, path, log, explicit=explicit, **options))
        summaries.append(summarize(name, found))
    metric = summaries[0]["metric"]
    sign = -1 if metric in metrics.LOWER_IS_BETTER else 1
    summaries.sort(key=lambda summary: -sign * summary["scores"][metric]["median"])
    if jax.process_index() == 0:
        atomic.write_text(os.path.join(directory, SUMMARY_FILE), json.dumps(summaries, indent=2) + "\n")
    return summaries


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parses texts like "optimizer.learning_rate=5e-5,3e-5" to {field: texts of values}.

    If there are semicolons, they separate the values, which may then have commas.
    """
    grid: dict[str, list[str]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals or not values or field in grid:
            raise UserError(f"--grid={text}: expected a field once, such as batch_size=16,32")
        grid[field] = values.split(";" if ";" in values else ",")
    return grid


def _typed(config: ml_collections.ConfigDict, field: str, value: Any) -> Any:
    """Returns a value of the grid, a text or not, as one of a field of the configuration."""
    if field == "seed":
        raise UserError("--grid=seed=...: --seeds=N runs with N seeds, from config.seed up")
    try:
        old = fields.lookup(config, field)
    except UserError as error:
        raise UserError(f"--grid={field}=...: {error}") from None
    if isinstance(value, str) and not isinstance(old, str):
        value = _parsed(value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    # A field without a value has no type to compare with, and is checked as any other one.
    if old is not None and type(old) is not type(value):
        raise UserError(f"--grid={field}={value}: expected values of the type {type(old).__name__}")
    return value


def _parsed(text: str) -> Any:
    for convert in () if "_" in text else (int, float):  # Python reads 3_2 as 32
        with contextlib.suppress(ValueError):
            return convert(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def summarize(setting: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the statistics of one point of a grid over its seeds.

    Args:
        setting: the name of its directory, such as `learning_rate=3e-05,batch_size=16`; "" without a grid.
        runs: the content of best.json for each seed, in order.

    Returns:
        `setting`; `seeds`, the number of runs; `degenerate`, the number of runs that predict the same for
        every example; `metric`, by which runs are compared; and `scores`: the median, best, worst and
        standard deviation of each metric, and the values of all runs.
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


def directory_of(directory: str, name: str, config: ml_collections.ConfigDict) -> str:
    """Returns the work directory of the run of a setting with the seed of a configuration."""
    return os.path.join(directory, name, f"seed-{config.seed}")


def best_run(directory: str, summary: Mapping[str, Any], config: ml_collections.ConfigDict) -> str:
    """Returns the work directory of the best run of a point of the grid.

    Args:
        directory: the directory of the grid.
        summary: the summary of the point; see `summarize`.
        config: the configuration of the grid, with the first seed.
    """
    metric = summary["metric"]
    best = np.argmin if metric in metrics.LOWER_IS_BETTER else np.argmax
    seed = config.seed + int(best(summary["scores"][metric]["all"]))
    return os.path.join(directory, summary["setting"], f"seed-{seed}")


def read_summary(directory: str) -> dict[str, Any] | None:
    """Returns the result of the best point of a grid, or None if the directory has no summary.json.

    Returns:
        {"scores": {metric: median}, "run": the work directory of one of its runs}.

    Raises:
        UserError: summary.json is not valid, or the work directories do not exist.
    """
    path = os.path.join(directory, SUMMARY_FILE)
    if not files.exists(path):
        return None
    points = json_files.read(path, [{"setting": str, "scores": {str: {"median": (float, None)}}}])
    folder = os.path.join(directory, points[0]["setting"].replace("\0", "")) if points else directory
    runs = [os.path.join(folder, name) for name in files.names(folder) if name.startswith("seed-")]
    if not points or not runs:
        raise UserError(f"{path}: the work directories of its best setting are missing")
    return {"scores": {name: one["median"] for name, one in points[0]["scores"].items()}, "run": runs[0]}


def table(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
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
