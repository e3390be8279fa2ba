"""Score a fine-tuned model on a labeled file, with the metrics of its task.

bert-jax evaluate --workdir=runs/mrpc
bert-jax evaluate --workdir=runs/reviews --input=test.csv --output=predictions.tsv
bert-jax evaluate --workdir=runs/cola,runs/mrpc,runs/rte
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models
from bert_jax.errors import UserError
from bert_jax.io import checks, progress
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.runs import sweep
    from bert_jax.tasks.glue import tables
    from bert_jax.training import evaluators
    from bert_jax.workdir import run_directory


def define_flags(define: Define) -> None:
    """Defines the flags."""
    models.add_finetuned(
        define,
        "several of GLUE, separated by commas, are shown as one table",
        "Also write the predictions to this file: .tsv, .csv or .jsonl; for tags .conll, .txt, .tsv or "
        ".jsonl.",
    )
    define.string(
        "split",
        "Which of the run's files: train, dev, or the name of another SPLIT.tsv in its data_dir.",
        "dev",
    )
    define.string("input", "Another labeled file, with the columns of the training file.")
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    if "," in flags.workdir:
        of_one_run = ("split", "input", "output", "overwrite", "checkpoint", "null_score_diff_threshold")
        for name in of_one_run:
            if flags[name].present:
                raise UserError(f"--{name} is for a single run, but --workdir={flags.workdir} names several")
        return _table([path.strip() for path in flags.workdir.split(",") if path.strip()], flags.json)
    if flags.input and flags["split"].present:
        raise UserError("--input and --split name two files; give only one of them")
    model = models.load_finetuned(flags)
    task = model.task
    if flags.output:
        checks.check_output(flags.output, task.formats, overwrite=flags.overwrite)
    path = models.input_file(flags, model)
    examples = task.read(path)
    if examples.warning():
        print(f"warning: {examples.warning()}", file=sys.stderr)
    with progress.of_batches("evaluating") as on_batch:
        predictions = model.predict(examples, on_batch)
    scores = task.score(predictions)
    breakdown = predictions.breakdown()
    if flags.output:
        predictions.write(flags.output)
    if flags.json:
        found = {"file": path, "examples": len(examples), "checkpoint": model.source, "scores": scores}
        found |= {"by_class": breakdown} if breakdown else {}
        print(json.dumps(found))
        return 0
    print(f"{len(examples):,} examples of {path}, checkpoint {model.source}")
    for name, value in scores.items():
        print(f"  {name:<20} {value:.4f}")
    if breakdown:
        _print_table(breakdown)
    return 0


def _table(directories: list[str], as_json: bool) -> int:
    """Prints the best score of each GLUE run, the median for runs with --seeds, and the average."""
    scores = {}
    for directory in directories:
        summary = sweep.read_summary(directory)
        run = run_directory.read_run(summary["run"] if summary else directory)
        task = run["config"].get("task", run["command"])
        tables.submission_files(task)
        if task in scores:
            raise UserError(f"{directory} is a second run of {task}; give only one run of each task")
        best = summary or evaluators.read_best(directory)
        if not best or not best["scores"]:
            raise UserError(
                f"{directory}: the run has no evaluation and thus no score; expected a run with an "
                "evaluation file"
            )
        scores[task] = best["scores"]
    if as_json:
        print(json.dumps({"scores": scores, "average": tables.average(scores)}))
    else:
        print("\n".join(tables.table(scores)))
    return 0


def _print_table(rows: Mapping[str, Mapping[str, float]]) -> None:
    """Prints scores by class: fractions with four digits, counts as integers."""
    width = max(map(len, rows))
    names = list(next(iter(rows.values())))
    print(f"  {'':<{width}} " + "".join(f"{name:>11}" for name in names))
    for label, row in rows.items():
        shown = (f"{x:>11,}" if isinstance(x, int) else f"{x:>11.4f}" for x in row.values())
        print(f"  {label:<{width}} " + "".join(shown))
