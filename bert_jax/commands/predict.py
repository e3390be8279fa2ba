"""Predict with a fine-tuned model: writes a file of predictions and probabilities for a file of texts.

    bert-jax predict --workdir=runs/reviews --input=new.csv --output=predictions.tsv
    bert-jax predict --workdir=runs/cola,runs/mrpc --split=test --output=submission.zip
    bert-jax predict --workdir=runs/reviews --input=-

The input has the columns of the training file; labels are optional. For a task with single texts a .txt file
has one text per line, blank lines included, and no header. The output has the rows in the order of
the input, with an `id`: the value of the id column, or the number of the row from 0. A .zip has the format of
GLUE's server, with the test sets of several runs. --input=- answers each line of standard input (a JSON
object, a text, or for pairs two texts with a tab between them) with one line of JSON on standard output.
"""

from __future__ import annotations

import sys
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import output_flags
from bert_jax.commands.run_flags import define_threshold_flag
from bert_jax.errors import UserError
from bert_jax.io import checks, progress

with epy.lazy_imports():
    from bert_jax.inference import predictor, streaming
    from bert_jax.parallel import compiler_options
    from bert_jax.tasks import setup
    from bert_jax.tasks.glue import tables


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_string(
        "workdir", None, "Work directory of `bert-jax finetune`.", flag_values=flag_values
    )
    absl_flags.DEFINE_string(
        "input",
        None,
        "TSV, CSV or JSON-lines file; .txt of single texts: one text per line; for tags CoNLL columns too; "
        "- for lines of standard input.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "split",
        None,
        "Instead of --input: SPLIT.tsv of the run's data_dir, such as test.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "output",
        None,
        "File to write: .tsv, .csv or .jsonl; of tags .conll, .txt, .tsv or .jsonl; of answers .json. Of "
        "standard input the predictions go to standard output.",
        flag_values=flag_values,
    )
    for name, what in (("text_a", "the text"), ("text_b", "the second text of a pair"), ("id", "the id")):
        absl_flags.DEFINE_string(
            name, None, f"Column of {what}. Default: that of the training file.", flag_values=flag_values
        )
    absl_flags.DEFINE_bool(
        "header",
        None,
        "Whether the first row names the columns. Default: as the training file.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "format",
        "auto",
        "auto (by suffix), tsv, csv or jsonl; of tags conll or jsonl. Of standard input auto, jsonl, or tsv "
        "for text even where it begins with a brace.",
        flag_values=flag_values,
    )
    output_flags.define_overwrite(flag_values)
    absl_flags.DEFINE_string("checkpoint", "best", "best or last.", flag_values=flag_values)
    define_threshold_flag(flag_values)


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"predict takes no arguments besides its flags, but was given {args[0]!r}")
    if not flags.workdir:
        raise UserError("which model? give --workdir=DIR, the work directory of a fine-tuning")
    if bool(flags.input) == bool(flags.split):
        raise UserError("what should be predicted? give --input=FILE (or --split=test)")
    if flags.input == "-":
        return _serve(flags)
    if not flags.output:
        raise UserError("where should the predictions go? give --output=FILE.tsv")
    if flags.output.endswith(".zip"):
        for name in ("input", "text_a", "text_b", "id", "header", "format", "checkpoint"):
            if flags[name].present:
                raise UserError(f"--{name} is not for a submission, which has the test sets of GLUE")
        directories = [path.strip() for path in flags.workdir.split(",") if path.strip()]
        return _submit(directories, flags.output, flags.overwrite)
    compiler_options.enable_compilation_cache()
    model = predictor.Predictor(flags.workdir, flags.checkpoint)
    task = model.task
    if flags.null_score_diff_threshold is not None:
        task.set_null_threshold(flags.null_score_diff_threshold)
    checks.check_output(flags.output, task.formats, overwrite=flags.overwrite)
    path = flags.input or model.file(flags.split)
    if not path:
        raise UserError(f"--split={flags.split}: the run has no such file; give --input=FILE")
    given = _given(flags, "text_a", "text_b", "id", "header")
    examples = task.read(path, labelled=False, test=flags.split == "test", format=flags.format, **given)
    if examples.warning():
        print(f"warning: {examples.warning()}", file=sys.stderr)
    with progress.of_batches("predicting") as on_batch:
        predictions = model.predict(examples, on_batch)
    predictions.write(flags.output)
    print(f"wrote {flags.output}: {len(examples):,} predictions of {model.source}")
    return 0


def _given(flags, *names: str) -> dict[str, object]:
    return {name: getattr(flags, name) for name in names if getattr(flags, name) is not None}


def _serve(flags) -> int:
    """Predicts the lines of standard input until it ends."""
    if flags.output not in (None, "-"):
        raise UserError(
            f"--output={flags.output}: of standard input the predictions go to standard output; write > "
            f"{flags.output} instead, or give --input=FILE"
        )
    if flags.header is not None:
        raise UserError("--header is for files; lines of standard input have none")

    def log(line):
        print(line, file=sys.stderr, flush=True)

    compiler_options.enable_compilation_cache()
    model = predictor.Predictor(flags.workdir, flags.checkpoint, log=log)
    if flags.null_score_diff_threshold is not None:
        model.task.set_null_threshold(flags.null_score_diff_threshold)
    reader = model.task.line_reader(flags.format, **_given(flags, "text_a", "text_b", "id"))
    began = time.monotonic()
    programs = model.warm_up()
    log(
        f"ready: {model.source}, {programs} programs in {time.monotonic() - began:.1f} s; a line is an "
        f"object of JSON, or {reader.expected}"
    )
    # A separate file object that is never closed: a thread may still wait in it when the command is
    # interrupted, and Python aborts if it has to close sys.stdin while a thread uses it.
    source = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
    count, bad = streaming.serve(model, reader, source, sys.stdout.buffer)
    log(f"{count:,} lines" + (f", {bad:,} of them bad" if bad else ""))
    return 0


def _submit(directories: list[str], output: str, overwrite: bool) -> int:
    """Writes a zip file for GLUE's server, with predictions for the test sets of these runs."""
    checks.check_output(output, (".zip",), overwrite=overwrite)
    compiler_options.enable_compilation_cache()
    files = {}
    for directory in directories:
        model = predictor.Predictor(directory)
        spec = model.task.spec
        for split, name in tables.submission_files(spec.name).items():
            if split == "diagnostic" and not setup.has_file(model.config, spec, split):
                continue  # it does not count in GLUE's score
            examples = model.task.read(model.file(split), labelled=False, test=True)
            with progress.of_batches(f"predicting {name}") as on_batch:
                predictions = model.predict(examples, on_batch)
            files[name] = tables.submission_file(examples.ids, predictions.outputs, model.task.labels)
            print(f"{name}: {len(examples):,} predictions of {model.source}")
    missing = tables.write_submission(output, files)
    print(f"wrote {output}" + (f"; the server also wants {', '.join(missing)}" if missing else ""))
    return 0
