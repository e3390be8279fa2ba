"""Pre-train BERT on records: masked language modelling and next-sentence prediction.

    bert-jax pretrain --config=pretrain/mini --workdir=runs/mini --config.data.dir=records

The records come from `bert-jax data`, or from google-research/bert's create_pretraining_data
(--config.data.vocab names their vocabulary). Run the same command again to resume.
"""

from __future__ import annotations

import os
import shlex

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.process_flags import start_processes
from bert_jax.commands.run_flags import define_run_flags
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.parallel import distributed
from bert_jax.settings import config_files

with epy.lazy_imports():  # these import jax, which the command's help does not need
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import pretrain


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    define_run_flags(flag_values, "pretrain", "pretrain/base", "checkpoints, metrics and the resolved config")
    absl_flags.DEFINE_bool(
        "allow_changes",
        False,
        "Go on with a run although its config, records or vocabulary are no longer the same.",
        flag_values=flag_values,
    )


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"pretrain takes no arguments besides its flags, but was given {args[0]!r}")
    if flags.config is None:
        raise UserError("what to train? give --config=pretrain/SIZE; `bert-jax configs` lists them")
    if not flags.workdir:
        raise UserError("where to? give --workdir=DIR, a new directory or that of the run to go on with")
    fit_options = start_processes(flags)
    compiler_options.enable_compilation_cache(flags.compilation_cache)
    explicit = config_files.overridden(flags, "model")
    state = pretrain.pretrain(
        flags.config, flags.workdir, explicit=explicit, allow_changes=flags.allow_changes, **fit_options
    )
    saved = os.path.join(flags.workdir, "checkpoints", str(int(state.step)))
    if files.exists(saved):
        workdir = shlex.quote(flags.workdir)
        distributed.log_of_primary(print)(
            f"saved in {saved}; try: bert-jax fill-mask --checkpoint={workdir} 'The [MASK] is here.'"
        )
    return 0
