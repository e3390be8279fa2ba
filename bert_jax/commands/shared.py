"""Flags that several commands have, and functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from absl import flags as absl_flags
from etils import epy

from bert_jax.errors import UserError, check_flag
from bert_jax.io import checks, comma_lists, progress
from bert_jax.kernels.dispatch import DTYPES
from bert_jax.parallel import distributed
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    import jax

    from bert_jax.convert import conversion, model_card
    from bert_jax.inference import predictor, search
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import pretrain
    from bert_jax.settings import pretrain_config
    from bert_jax.training import throughput
    from bert_jax.workdir import run_directory

MODEL = "a work directory or checkpoint of bert-jax, a Hugging Face folder or hub name, or a TF1 prefix"
FINETUNED = "a Hugging Face or PEFT folder, or a hub name, with a fine-tuned head"

_STALL_SECONDS = 900.0  # for runs with several processes; a single process may be suspended for any time


def at_least(flags: absl_flags.FlagValues, **least: float) -> None:
    """Raises a UserError if a flag has a value below its minimum; flags without a value are valid."""
    for name, bound in least.items():
        value = flags[name].value
        check_flag(name, value, value is None or value >= bound, f"{bound} or more")


def check_one(flags: absl_flags.FlagValues, *names: str, required: bool = True) -> None:
    """Raises a UserError if several of these flags are given, or none although one is required."""
    count = sum(bool(flags[name].value) for name in names)
    if count > 1 or (required and not count):
        one = "exactly one" if required else "at most one"
        raise UserError(f"expected {one} of the flags --{', --'.join(names)}")


def check_given(flags: absl_flags.FlagValues, names: Iterable[str], use: str) -> None:
    """Raises a UserError if a flag is missing that `use` requires."""
    if missing := [name for name in names if not flags[name].value]:
        raise UserError(f"{use} needs --{' and --'.join(missing)}")


def check_unused(flags: absl_flags.FlagValues, names: Iterable[str], use: str) -> None:
    """Raises a UserError if a flag is given that `use` ignores."""
    for name in names:
        if flags[name].present:
            raise UserError(f"--{name} has no effect with {use}; remove it")


def add_model(define: Define) -> None:
    """Defines --model and --dtype, for commands that compute with an encoder."""
    define.string("model", f"Model: {MODEL}.", required=f"DIR, the model: {MODEL}")
    add_dtype(define)


def add_dtype(define: Define) -> None:
    """Defines --dtype."""
    define.choice(
        "dtype",
        DTYPES,
        "Type to compute in. auto: float32 on CPUs; elsewhere the type of the model's run, or bfloat16.",
        "auto",
    )


def add_reranker(define: Define) -> None:
    """Defines --rerank, for commands that rank documents."""
    define.string("rerank", "Fine-tuned model of pairs that reorders the results.")


def load_reranker(flags: absl_flags.FlagValues, candidates: int = 100) -> search.Reranker | None:
    """Returns the model of --rerank, which reranks `candidates` documents per query; None without it."""
    if not flags.rerank:
        return None
    options = {"log": progress.log, "dtype": flags.dtype, "columns": {"text_b": "text_b"}}
    model = predictor.Predictor(flags.rerank, **options)
    return search.Reranker(model, candidates, progress.log)


def add_finetuned(define: Define, workdir: str, output: str) -> None:
    """Defines the flags of commands that use a fine-tuned model, except --model."""
    define.string(
        "workdir", f"Work directory of `bert-jax finetune`, or comma-separated ones of GLUE, {workdir}."
    )
    define.string("output", output)
    define.overwrite()
    define.string("step", "Checkpoint of the run: best, last, or a step number.", "best")
    define.number(
        "null_score_diff_threshold",
        "Predict no answer (SQuAD 2.0) if its score exceeds the best answer's by more than this. Default: "
        "the run's value.",
    )
    define.string("choices", "Comma-separated columns of the choices, for multiple choice with --model.")
    add_dtype(define)


def add_text_columns(define: Define, purpose: str) -> None:
    """Defines --text, the columns of the text or of a pair of texts; `purpose` ends its help text."""
    define.string("text", f"Column of the text, or A,B for pairs.{purpose}")


def text_columns(flags: absl_flags.FlagValues, least: int = 0) -> dict[str, str]:
    """Returns `text_a` and `text_b`, the columns that --text names, `least` or more; others have no entry."""
    names = comma_lists.names(flags.text or "")
    expected = "two columns, A,B" if least == 2 else "one column, or A,B for pairs"
    check_flag("text", flags.text, least <= len(names) <= 2, expected)
    return dict(zip(("text_a", "text_b"), names, strict=False))


def layers(flags: absl_flags.FlagValues) -> list[int] | None:
    """Returns the numbers of --layers, None without the flag. Raises UserError for other text."""
    try:
        return None if flags.layers is None else list(map(int, flags.layers.split(",")))
    except ValueError:
        raise UserError(f"--layers={flags.layers}: expected numbers separated by commas") from None


def present(flags: absl_flags.FlagValues, *names: str) -> dict[str, str]:
    """Returns the values of the named flags that have one."""
    return {name: value for name in names if (value := flags[name].value) is not None}


def load_finetuned(flags: absl_flags.FlagValues, *columns: str) -> predictor.Predictor:
    """Returns the model of --workdir or --model, whose columns --text and the flags `columns` name."""
    if flags.workdir:
        check_unused(flags, ("choices",), "--workdir")
        run_directory.read_run(flags.workdir)  # a UserError for models in other formats and on the hub
    compiler_options.enable_compilation_cache()
    threshold = flags.null_score_diff_threshold
    overrides = {} if threshold is None else {"null_score_diff_threshold": threshold}
    options: dict[str, Any] = {"log": progress.log, "overrides": overrides, "dtype": flags.dtype}
    given = text_columns(flags) | present(flags, *columns, "choices")
    return predictor.Predictor(flags.workdir or flags.model, flags.step, columns=given, **options)


def check_predictions_file(flags: absl_flags.FlagValues, task: Any) -> None:
    """Raises a UserError if the predictions of a task cannot be written to --output."""
    checks.check_output_file(flags.output, task.formats, overwrite=flags.overwrite)
    for path in task.files_beside(flags.output):
        checks.check_free(path, flags.overwrite)


def input_file(flags: absl_flags.FlagValues, model: predictor.Predictor) -> str:
    """Returns the file of --input or --split, by default the run's evaluation file; else raises UserError."""
    split = flags.split or "dev"
    path = flags.input or model.file(split)
    check_flag("split", split, path, "a split with a file in the run's config, or --input=FILE instead")
    return path


def add_run(define: Define, command: str, contents: str, short: Any = None) -> None:
    """Defines the flags of commands that train; --workdir contains `contents`, `short` is for the config."""
    config_flag.add(define, command, short=short)
    add_push(define)
    define.string(
        "workdir", f"Directory for {contents}.", required="DIR, a new directory, or a run to resume"
    )
    define.string("profile_steps", "Write a profile of the steps FIRST:LAST to WORKDIR/profile.", "")
    define.integer(
        "profiler_port", "Port for xprof or TensorBoard to capture profiles of the running process."
    )
    define.choice(
        "distributed",
        ["auto", "off"],
        "auto: join the other processes that Cloud TPU, GKE, Slurm or Open MPI started; off: run a single "
        "process.",
        "auto",
    )
    define.string(
        "coordinator_address",
        "HOST:PORT of process 0, unless the environment sets it. The connection is not encrypted: use a "
        "private network.",
    )
    define.integer("num_processes", "Number of processes of the run.")
    define.integer("process_id", "Number of this process, from 0.")
    define.integer("initialization_timeout", "Seconds to wait until all processes have connected.", 300)
    define.integer(
        "heartbeat_timeout",
        "Seconds without a heartbeat after which a process is lost and the others exit.",
        100,
    )


def add_push(define: Define) -> None:
    """Defines --push_to and --license."""
    define.string(
        "push_to",
        "Upload the model to USER/NAME on the Hugging Face hub, with the token of `hf auth login`.",
        "",
    )
    define.string("license", "License for the model card, such as apache-2.0.", "")


def push_run(flags: absl_flags.FlagValues, workdir: str, log: Callable[[str], None]) -> None:
    """Uploads the model of a run if --push_to asks for it. All processes have to call this."""
    if flags.push_to:
        log(f"pushed to {conversion.push_run(workdir, flags.push_to, license=flags.license, log=log)}")


def start_processes(flags: absl_flags.FlagValues) -> dict[str, Any]:
    """Joins the other processes of the run, if there are any; returns arguments of the training loop."""
    if flags.push_to:
        model_card.check_name(flags.push_to)
    else:
        check_unused(flags, ["license"], "a run without --push_to")
    profile_steps = throughput.parse_profile_steps(flags.profile_steps)
    at_least(flags, initialization_timeout=1, heartbeat_timeout=1, profiler_port=1)
    place = distributed.process_info(
        flags.coordinator_address,
        flags.num_processes,
        flags.process_id,
        detect=flags.distributed == "auto",
        timeout=flags.initialization_timeout,
    )
    if place is not None:
        distributed.start(
            place, meet_timeout=flags.initialization_timeout, heartbeat_timeout=flags.heartbeat_timeout
        )
    if flags.profiler_port is not None:
        jax.profiler.start_server(flags.profiler_port)
    return {"stall_timeout": 0.0 if place is None else _STALL_SECONDS, "profile_steps": profile_steps}


def pretraining_config(flags: absl_flags.FlagValues) -> pretrain_config.PretrainConfig:
    """Returns the configuration of a pre-training run from --config, without starting it."""
    typed = pretrain_config.pretraining(flags.config)
    config, adopted = pretrain.adopt_architecture(typed, config_flag.overridden(flags, "model."))
    if adopted:
        progress.log(adopted)
    if config.causal_steps:
        progress.log(
            f"this is the step of masked LM; for the first {config.causal_steps:,} steps, set "
            "--config.causal_steps=0 --config.objective=causal_lm --config.model.causal=true"
        )
    return config
