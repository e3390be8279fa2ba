r"""Fine-tune a model: labels, numbers, multiple choice, questions, tags of words, embeddings or reranking.

    bert-jax finetune --config=finetune/classification --workdir=runs/reviews \
        --config.init_from=runs/mini --config.data.train=train.csv --config.data.eval=dev.csv \
        --config.data.text_a=review --config.data.label=stars
    bert-jax finetune --config=finetune/glue:mrpc --workdir=runs/mrpc \
        --config.init_from=runs/mini --config.data_dir=glue
    bert-jax finetune --config=finetune/tagging --workdir=runs/entities \
        --config.init_from=runs/mini --config.data.train=train.conll --config.data.eval=dev.conll

Files are TSV, CSV or JSON lines; columns go by name, or by number from 0. The labels are those of the
training file. Run the same command again to resume. The work directory keeps the checkpoint that is best on
the evaluation file, its predictions and a model card. --seeds=5 runs five times and reports mean and standard
deviation; --grid tries values of a field and may be given several times.
"""

from __future__ import annotations

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
    from bert_jax.tasks import registry
    from bert_jax.workdir import run_directory


def define_flags(define: Define) -> None:
    """Defines the flags."""
    shared.add_run(define, "finetune", "checkpoints, metrics and predictions")
    define.integer(
        "seeds",
        "Run this many times, with the seeds config.seed, config.seed + 1 and so on, each in its own "
        "directory, and print mean and standard deviation.",
    )
    define.strings(
        "grid",
        "Field and the values to try, such as optimizer.learning_rate=5e-5,3e-5,2e-5. Semicolons separate "
        "values that have commas. May be repeated.",
        [],
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    fit_options = shared.start_processes(flags)
    log = distributed.log_of_primary(print)
    command = command_line("finetune", flags)
    options = {"explicit": config_flag.overridden(flags, "model."), "command_line": command, **fit_options}
    compiler_options.enable_compilation_cache()
    if flags.seeds is not None or flags.grid:
        grid = sweep.grid(flags.config, flags.grid, 1 if flags.seeds is None else flags.seeds)
        work = sweep.Sweep(grid, flags.workdir, **options)
        work.run()
        log(work.report())
        best_run = work.summaries()[0]["best"]
        if files.exists(best_run):
            _log_next(flags.config.task, best_run, best_run, log)
        shared.push_run(flags, best_run, log)
        return 0
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
    return 0


def _log_next(name: str, workdir: str, saved: str, log: Callable[[str], None]) -> None:
    """Logs where a model is saved and a command that uses it."""
    command = registry.get(name).task.next_command.format(workdir=shlex.quote(workdir))
    log(f"saved in {saved}; try: bert-jax {command}")
