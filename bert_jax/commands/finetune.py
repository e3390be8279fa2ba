r"""Fine-tune a model to classify, score, tag, choose, answer questions, embed or rerank.

    bert-jax finetune --model=runs/mini --train=train.csv --eval=dev.csv --text=review --label=stars \
        --workdir=runs/reviews
    bert-jax finetune --config=finetune/glue:mrpc --workdir=runs/mrpc \
        --config.init_from=runs/mini --config.data_dir=glue
    bert-jax finetune --config=finetune/tagging --workdir=runs/entities \
        --config.init_from=runs/mini --config.data.train=train.conll --config.data.eval=dev.conll

Without --config, the task is inferred from the training file, and the first line names the equivalent config.
Files are TSV, CSV, JSON lines or Parquet. Columns are names, or numbers from 0. The training file determines
the labels. The work directory keeps the checkpoint that is best on the evaluation file, with its predictions
and a model card. Run the same command again to resume. --seeds=5 runs five times and reports mean and
standard deviation; --grid tries several values of a field.
"""

import os
import shlex
from collections.abc import Callable

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import files
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define, command_line

with epy.lazy_imports():
    from bert_jax.parallel import compiler_options, distributed
    from bert_jax.runs import finetune, sweep
    from bert_jax.tasks import inferred, registry, setup
    from bert_jax.workdir import run_directory


def define_flags(define: Define) -> None:
    shared.add_run(define, "finetune", "checkpoints, metrics and predictions", _short)
    define.required["config"] += " or --train=FILE"
    define.string("model", f"Model to start from: {shared.MODEL}. Short for --config.init_from.")
    define.string("train", "Training file, or hf:ORG/NAME on the hub. Short for --config.data.train.")
    define.string("eval", "Evaluation file. Short for --config.data.eval.")
    shared.add_text_columns(
        define, " Default: one with a usual name, such as text. Short for --config.data.text_a and text_b."
    )
    define.string("label", "Column of the label. Short for --config.data.label.")
    define.integer(
        "seeds",
        "Number of runs, with seeds from config.seed on, each in its own directory; prints mean and standard "
        "deviation.",
    )
    define.strings(
        "grid",
        "Field and values to try, such as optimizer.learning_rate=5e-5,3e-5. Separate values with commas by "
        "semicolons. Repeatable.",
        [],
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    fit_options = shared.start_processes(flags)
    log = distributed.log_of_primary(print)
    command = command_line("finetune", flags)
    if note := config_flag.flag_of(flags).note:
        log(note)
    options = {"explicit": config_flag.overridden(flags, "model."), "command_line": command, **fit_options}
    compiler_options.enable_compilation_cache(flags.workdir)
    if flags.seeds is not None or flags.grid:
        named = setup.with_named_data(flags.config, log)
        grid = sweep.grid(named, flags.grid, 1 if flags.seeds is None else flags.seeds)
        work = sweep.Sweep(grid, flags.workdir, **options)
        work.run()
        log(work.report())
        best_run = work.summaries()[0]["best"]
        if files.exists(best_run):
            _log_next(flags.config.task, best_run, best_run, log)
        shared.push_run(flags, best_run, log)
        return
    best = finetune.finetune(flags.config, flags.workdir, **options)
    if best["scores"]:
        scores = "  ".join(f"{name} {value:.4f}" for name, value in best["scores"].items())
        log(f"best: step {best['step']}  {scores}")
    if best.get("degenerate"):
        log(
            "warning: the model predicts the same for every row of the evaluation file; try a higher "
            "--config.optimizer.learning_rate, more --config.epochs, or another --config.seed"
        )
    folder = run_directory.BEST if best["scores"] else "checkpoints"
    saved = os.path.join(flags.workdir, folder, str(best["step"]))
    if files.exists(saved):
        _log_next(flags.config.task, flags.workdir, saved, log)
    shared.push_run(flags, flags.workdir, log)


def _short(flags: absl_flags.FlagValues) -> tuple[str | None, dict[str, str]]:
    """Returns the config that is inferred, and the fields of the short flags; see `ConfigFlag.short`."""
    columns = shared.text_columns(flags)
    texts = {f"data.{name}": column for name, column in columns.items()}
    of_flags = {"init_from": flags.model, "data.train": flags.train, "data.eval": flags.eval}
    fields = {
        name: value for name, value in (of_flags | texts | {"data.label": flags.label}).items() if value
    }
    if flags.config or not flags.train:
        return None, fields
    found = inferred.infer(flags.train, [*columns.values()], flags.label or "")
    config_flag.flag_of(flags).note = str(found)
    return found.config, fields | dict(found.fields)


def _log_next(name: str, workdir: str, saved: str, log: Callable[[str], None]) -> None:
    """Logs where a model is saved and a command that uses it."""
    command = registry.get(name).task.next_command.format(workdir=shlex.quote(workdir))
    log(f"saved in {saved}; try: bert-jax {command}")
