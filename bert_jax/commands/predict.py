"""Write a fine-tuned model's predictions and probabilities for a file of texts.

    bert-jax predict --workdir=runs/reviews --input=new.csv --output=predictions.tsv
    bert-jax predict --workdir=runs/cola,runs/mrpc --split=test --output=submission.zip
    bert-jax predict --workdir=runs/reviews --input=-
    bert-jax predict --model=org/name --input=new.csv --text=review --output=predictions.tsv

The input has the columns of the training file; labels are optional. For single texts, a .txt file has one
text per line (blank lines count) and no header. The output has one row per input row, in the same order, with
an `id` from the id column or the row number from 0; a malformed row is an error. A .zip contains the
predictions of several runs for GLUE's server. --input=- reads lines from standard input (a JSON object, a
text, or two texts separated by a tab) and writes a line of JSON for each to standard output.

--model is another model with a fine-tuned head, such as a Hugging Face folder. The columns of its input are
named by flags, have usual names that `finetune` also finds, or are `text_a` and `text_b`.
"""

from __future__ import annotations

import sys
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import UserError
from bert_jax.io import checks, comma_lists, progress
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.inference import predictor
    from bert_jax.parallel import compiler_options
    from bert_jax.tasks import glue
    from bert_jax.tasks import predictions as task_predictions

# Flags that a .zip does not use, and flags that --input=- does not use.
_NOT_FOR_ZIP = ("text", "id", "model", "choices", "input", "format", "step", "null_score_diff_threshold")
_NOT_FOR_LINES = ("output", "overwrite", "format")


def define_flags(define: Define) -> None:
    shared.add_finetuned(
        define,
        "for a .zip",
        "File to write: .tsv, .csv or .jsonl; for tags .conll, .txt, .tsv or .jsonl; for answers .json; for "
        "GLUE's server .zip. Predictions for standard input go to standard output.",
    )
    define.string("model", f"Model, instead of --workdir: {shared.FINETUNED}.")
    define.string(
        "input",
        "TSV, CSV or JSON lines file; for single texts also .txt, one per line; for tags also CoNLL columns; "
        "- for standard input.",
    )
    define.string(
        "split", "File SPLIT.tsv in the run's data_dir to predict instead of --input, such as test."
    )
    shared.add_text_columns(define, " Default: as in the training file.")
    define.string("id", "Column of the id. Default: as in the training file.")
    define.string(
        "format", "Format of the input: auto (by suffix), tsv, csv or jsonl; for tags conll or jsonl.", "auto"
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.check_one(flags, "workdir", "model")
    shared.check_one(flags, "input", "split")
    if flags.input == "-":
        shared.check_unused(flags, _NOT_FOR_LINES, "--input=-")
        return _predict_lines(flags)
    shared.check_given(flags, ["output"], "--input" if flags.input else "--split")
    if flags.output.endswith(".zip"):
        unused = _NOT_FOR_ZIP if flags.split == "test" else (*_NOT_FOR_ZIP, "split")
        shared.check_unused(flags, unused, "a .zip")
        return _submit(flags)
    model = shared.load_finetuned(flags, "id")
    shared.check_predictions_file(flags, model.task)
    path = shared.input_file(flags, model)
    model.find_columns(path, flags.format)
    options = shared.text_columns(flags) | shared.present(flags, "id")
    examples = model.task.read_unlabeled(path, test=flags.split == "test", format=flags.format, **options)
    examples.check(0)  # the predictions have a row for each example
    examples.warn(progress.log)
    with progress.of_batches("predicting") as on_batch:
        predictions = model.predict(examples, on_batch)
    predictions.write(flags.output)
    print(f"wrote {flags.output}: {counted(len(examples), 'prediction')} of {model.source}{model.unknown}")


def _predict_lines(flags: absl_flags.FlagValues) -> None:
    """Predicts the lines of standard input until it ends."""
    model = shared.load_finetuned(flags, "id")
    reader = model.task.line_reader(**shared.text_columns(flags), **shared.present(flags, "id"))
    began = time.monotonic()
    with progress.of_batches("compiling", "programs") as on_program:
        programs = model.warm_up(on_program)
    progress.log(
        f"ready: {model.source}, {counted(programs, 'program')} compiled in "
        f"{time.monotonic() - began:.1f} s; each line is a JSON object, or {reader.expected}"
    )
    count, bad = predictor.answer_lines(model, reader, sys.stdin.buffer, sys.stdout.buffer)
    progress.log(counted(count, "line") + (f", {bad:,} of them not valid" if bad else ""))


def _submit(flags: absl_flags.FlagValues) -> None:
    """Writes a zip file for GLUE's server, with predictions for the test sets of these runs."""
    checks.check_output_file(flags.output, (".zip",), overwrite=flags.overwrite)
    compiler_options.enable_compilation_cache()
    files: dict[str, str] = {}
    for directory in comma_lists.paths(flags.workdir):
        model = predictor.Predictor(directory, dtype=flags.dtype)
        spec = model.task.spec
        of_task = glue.submission_files(spec.name)
        if files.keys() & of_task.values():
            raise UserError(f"--workdir: {directory} is a second run of {spec.name}; expected one per task")
        for split, name in of_task.items():
            try:
                path = model.file(split)
            except UserError:
                if split != "diagnostic":  # it does not count in GLUE's score
                    raise
                continue
            if not path:
                raise UserError(f"--workdir: {directory} has no test set; expected one in config.data_dir")
            examples = model.task.read_unlabeled(path, test=True)
            examples.check(0)
            with progress.of_batches(f"predicting {name}") as on_batch:
                predictions = model.predict(examples, on_batch)
            # Every task of GLUE has these.
            assert isinstance(predictions, task_predictions.TablePredictions)
            files[name] = glue.submission_file(examples.ids, predictions.outputs, model.task.labels)
            print(f"{name}: {counted(len(examples), 'prediction')} of {model.source}")
    missing = glue.write_submission(flags.output, files)
    print(f"wrote {flags.output}" + (f"; the server also expects {', '.join(missing)}" if missing else ""))
