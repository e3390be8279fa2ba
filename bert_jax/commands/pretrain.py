"""Pre-train a model on records: masked LM and next sentences, ELECTRA, causal LM, or distillation.

    bert-jax pretrain --config=pretrain/mini --workdir=runs/mini --config.data.dir=records

The records come from `bert-jax data`, or from google-research/bert's create_pretraining_data
(--config.data.vocab names their vocabulary). Run the same command again to resume.
"""

import os

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import files
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define, command_line

with epy.lazy_imports():  # these import jax, which the command's help does not need
    from bert_jax.parallel import compiler_options, distributed
    from bert_jax.runs import pretrain


def define_flags(define: Define) -> None:
    shared.add_run(define, "pretrain", "checkpoints, metrics and the resolved config")
    define.boolean("allow_changes", "Resume although the config, the records or the vocabulary have changed.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    fit_options = shared.start_processes(flags)
    compiler_options.enable_compilation_cache(flags.workdir)
    explicit = config_flag.overridden(flags, "model.")
    log = distributed.log_of_primary(print)
    state = pretrain.pretrain(
        flags.config,
        flags.workdir,
        explicit=explicit,
        allow_changes=flags.allow_changes,
        command_line=command_line("pretrain", flags),
        **fit_options,
    )
    saved = os.path.join(flags.workdir, "checkpoints", str(int(state.step)))
    if files.exists(saved):
        log(f"saved in {saved}")
    shared.push_run(flags, flags.workdir, log)
