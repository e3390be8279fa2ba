"""Score a fine-tuned model on a labelled file: each example once, with the metrics of its task.

bert-jax evaluate --workdir=runs/mrpc
bert-jax evaluate --workdir=runs/reviews --input=test.csv --output=predictions.tsv
bert-jax evaluate --workdir=runs/cola,runs/mrpc,runs/rte
"""

from __future__ import annotations

import json
import sys

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import output_flags
from bert_jax.commands.run_flags import define_threshold_flag
from bert_jax.errors import UserError
from bert_jax.io import checks, progress

with epy.lazy_imports():
    from bert_jax.inference import predictor
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import sweep
    from bert_jax.tasks.glue import tables
    from bert_jax.training import evaluators
    from bert_jax.workdir import run_directory


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string(
        "workdir",
        None,
        "Work directory of `bert-jax finetune`; several of GLUE with commas between are one table.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "split",
        "dev",
        "Which of the run's files: train, dev, or another SPLIT.tsv of its data_dir.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "input",
        None,
        "A labelled file instead, with the columns of the training file.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "output",
        None,
        "Also write the predictions: .tsv, .csv or .jsonl; of tags .conll, .txt, .tsv or .jsonl.",
        flag_values=flag_values,
    )
    output_flags.define_overwrite(flag_values)
    absl_flags.DEFINE_string("checkpoint", "best", "best or last.", flag_values=flag_values)
    define_threshold_flag(flag_values)
    absl_flags.DEFINE_bool("json", False, "Print one JSON object.", flag_values=flag_values)


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"evaluate takes no arguments besides its flags, but was given {args[0]!r}")
    if not flags.workdir:
        raise UserError("which model? give --workdir=DIR, the work directory of a fine-tuning")
    if "," in flags.workdir:
        of_one_run = ("split", "input", "output", "overwrite", "checkpoint", "null_score_diff_threshold")
        for name in of_one_run:
            if flags[name].present:
                raise UserError(f"--{name} is for one run: give a single --workdir")
        return _table([path.strip() for path in flags.workdir.split(",") if path.strip()], flags.json)
    if flags.input and flags["split"].present:
        raise UserError("--input and --split are two files: give one of them")
    compiler_options.enable_compilation_cache()
    model = predictor.Predictor(flags.workdir, flags.checkpoint)
    task = model.task
    if flags.null_score_diff_threshold is not None:
        task.set_null_threshold(flags.null_score_diff_threshold)
    if flags.output:
        checks.check_output(flags.output, task.formats, overwrite=flags.overwrite)
    path = flags.input or model.file(flags.split)
    if not path:
        raise UserError(f"--split={flags.split}: the run has no such file; give --input=FILE")
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
            raise UserError(f"{directory} is the second run of {task}; give one of each task")
        best = summary or evaluators.read_best(directory)
        if not best or not best["scores"]:
            raise UserError(f"{directory}: nothing was evaluated in it, so there is no score")
        scores[task] = best["scores"]
    if as_json:
        print(json.dumps({"scores": scores, "average": tables.average(scores)}))
    else:
        print("\n".join(tables.table(scores)))
    return 0


def _print_table(rows):
    """Prints scores by class: fractions with four digits, counts as integers."""
    width = max(map(len, rows))
    names = list(next(iter(rows.values())))
    print(f"  {'':<{width}} " + "".join(f"{name:>11}" for name in names))
    for label, row in rows.items():
        shown = (f"{x:>11,}" if isinstance(x, int) else f"{x:>11.4f}" for x in row.values())
        print(f"  {label:<{width}} " + "".join(shown))
