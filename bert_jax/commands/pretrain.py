"""Pre-train a model on records: masked LM and next sentences, ELECTRA, causal LM, or distillation.

    bert-jax pretrain --config=pretrain/mini --workdir=runs/mini --config.data.dir=records

The records come from `bert-jax data`, or from google-research/bert's create_pretraining_data
(--config.data.vocab names their vocabulary). Run the same command again to resume.
"""

from __future__ import annotations

import os
import shlex

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.io import files
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

with epy.lazy_imports():  # these import jax, which the command's help does not need
    import jax

    from bert_jax import convert
    from bert_jax.checkpoint import leaves
    from bert_jax.convert import families
    from bert_jax.parallel import compiler_options
    from bert_jax.runs import pretrain
    from bert_jax.training import state as train_state
    from bert_jax.workdir import run_directory


def define_flags(define: Define) -> None:
    """Defines the flags."""
    shared.add_run(define, "pretrain", "checkpoints, metrics and the resolved config")
    define.boolean(
        "allow_changes",
        "Resume a run although its config, records or vocabulary have changed.",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    fit_options = shared.start_processes(flags)
    compiler_options.enable_compilation_cache()
    explicit = config_flag.overridden(flags, "model.")
    state = pretrain.pretrain(
        flags.config, flags.workdir, explicit=explicit, allow_changes=flags.allow_changes, **fit_options
    )
    saved = os.path.join(flags.workdir, "checkpoints", str(int(state.step)))
    if jax.process_index() == 0 and files.exists(saved):
        print(f"saved in {saved}{_next_command(flags.workdir, state)}")
    return 0


def _next_command(workdir: str, state: train_state.TrainState) -> str:
    """Returns a command to try on the model of a run, if it fills masks; else ""."""
    config, _ = convert.load_architecture(workdir)
    names = (*leaves.flatten(state.params), *leaves.flatten(state.frozen or {}))
    has_head = any("mlm" in name.split("/") for name in names)
    if config.causal or not (has_head or not families.of(config).masked_lm.has_parameters):
        return ""
    mask = run_directory.load_tokenizer(workdir).special_tokens["mask"]
    return f"; try: bert-jax fill-mask --model={shlex.quote(workdir)} 'The {mask} is here.'"
