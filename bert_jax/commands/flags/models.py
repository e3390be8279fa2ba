"""The flags of commands that use a trained model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import checks, comma_lists, progress
from bert_jax.kernels.dispatch import DTYPES
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.inference import predictor
    from bert_jax.inference.search import reranking
    from bert_jax.parallel import compiler_options

WORKDIR = "DIR, the work directory of a fine-tuning run"
CHECKPOINT = "a work directory or step of bert-jax, a Hugging Face folder, or a TF1 prefix"

# What to do instead of giving texts as arguments.
TEXTS_ARE_INPUT = "give texts in a file, --input=FILE, or as lines of standard input, --input=-"


def add_pretrained(define: Define) -> None:
    """Defines --checkpoint and --dtype, of commands that compute with an encoder."""
    define.string("checkpoint", f"The model: {CHECKPOINT}.", required=f"DIR, the model: {CHECKPOINT}")
    add_dtype(define)


def add_dtype(define: Define) -> None:
    """Defines --dtype."""
    define.choice(
        "dtype",
        DTYPES,
        "Type of the computation. auto: float32 on CPUs, else that of the checkpoint's run, or bfloat16.",
        "auto",
    )


def add_reranker(define: Define) -> None:
    """Defines --rerank, --relevant and --candidates, of commands that order documents."""
    define.string("rerank", "Work directory of a fine-tuned model of pairs, which orders the results again.")
    add_relevant(define)
    define.integer("candidates", "Number of documents that --rerank orders for each query. Default: 100.")


def add_relevant(define: Define) -> None:
    """Defines --relevant."""
    define.string(
        "relevant",
        "With --rerank, of a classification: the label of relevant documents. Default: that of the task, or "
        "the larger one of two integers.",
    )


def load_reranker(flags: absl_flags.FlagValues, log: Callable[[str], None]) -> reranking.Reranker | None:
    """Returns the model that the flags of `add_reranker` and `add_dtype` choose; None without --rerank.

    Raises:
        UserError: the model does not score pairs, or --candidates or --relevant does not fit.
    """
    if flags.candidates is not None and flags.candidates < 1:
        raise UserError(f"--candidates={flags.candidates}: expected 1 or more")
    if not flags.rerank:
        for name in ("candidates", "relevant"):
            if flags[name].present:
                raise UserError(f"--{name} is only used with --rerank; leave it out")
        return None
    most = flags.candidates or reranking.CANDIDATES
    ranker = predictor.Predictor(flags.rerank, log=log, dtype=flags.dtype)
    return reranking.Reranker(ranker, most, flags.relevant, log)


def add_finetuned(
    define: Define, workdir: str, output: str, checkpoint: str = "", required: str = WORKDIR
) -> None:
    """Defines the flags of commands that use the work directory of a fine-tuning run.

    Args:
        define: the flags to which they are added.
        workdir: what several work directories in --workdir mean.
        output: the help text of --output.
        checkpoint: the help text of --checkpoint, after its values for a fine-tuning run.
        required: what has to be given as --workdir; "" if the command can do without.
    """
    define.string("workdir", f"Work directory of `bert-jax finetune`; {workdir}.", required=required)
    define.string("output", output)
    define.overwrite()
    define.string("checkpoint", f"best or last.{checkpoint}", "best")
    define.number(
        "null_score_diff_threshold",
        "SQuAD 2.0: predict no answer if its score exceeds that of the best answer by more than this. "
        "Default: the value of the run.",
    )
    add_dtype(define)


def load_finetuned(flags: absl_flags.FlagValues, **options) -> predictor.Predictor:
    """Returns the model of a fine-tuning run, as the flags of `add_finetuned` choose it."""
    compiler_options.enable_compilation_cache()
    options = {"log": progress.log, "overrides": overrides(flags), "dtype": flags.dtype} | options
    return predictor.Predictor(flags.workdir, flags.checkpoint, **options)


def overrides(flags: absl_flags.FlagValues) -> dict[str, Any]:
    """Returns the values that flags of `add_finetuned` give to fields of the configuration of a run."""
    names = ("null_score_diff_threshold",)
    return {name: flags[name].value for name in names if flags[name].value is not None}


def workdirs(flags: absl_flags.FlagValues) -> list[str]:
    """Returns the work directories of --workdir, as `comma_lists.paths` finds them.

    Raises:
        UserError: it has none, or an empty one.
    """
    found = comma_lists.paths(flags.workdir)
    if not found:
        raise UserError(f"--workdir={flags.workdir}: expected work directories with commas between")
    return found


def check_predictions_file(flags: absl_flags.FlagValues, task: Any) -> None:
    """Raises a UserError if the predictions of a task cannot be written to --output."""
    checks.check_output_file(flags.output, task.formats, overwrite=flags.overwrite)
    for path in task.files_beside(flags.output):
        checks.check_free(path, flags.overwrite)


def input_file(flags: absl_flags.FlagValues, model: predictor.Predictor) -> str:
    """Returns the file of --input or --split, by default the run's evaluation file.

    Raises:
        UserError: the run has no file of that split.
    """
    split = flags.split or "dev"
    path = flags.input or model.file(split)
    if not path:
        raise UserError(f"--split={split}: the run has no such file; give --input=FILE")
    return path
