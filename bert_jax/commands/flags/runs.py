"""The flags of commands that train: --config, --workdir, --compilation_cache and those of processes."""

from __future__ import annotations

import ml_collections
from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import processes
from bert_jax.io import progress
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax.runs import pretrain
    from bert_jax.settings.typed import pretrain_config


def add(define: Define, command: str, contents: str) -> None:
    """Defines the flags.

    Args:
        define: the flags to which they are added.
        command: the command.
        contents: what the work directory contains.
    """
    config_flag.add(define, command, "The run.")
    define.string(
        "workdir",
        f"Directory for {contents}.",
        required="DIR, a new directory or that of a run to resume",
    )
    add_compilation_cache(define)
    processes.add(define)


def add_compilation_cache(define: Define) -> None:
    """Defines --compilation_cache."""
    define.string(
        "compilation_cache",
        "Directory that keeps compiled programs between runs; empty for none. Default: "
        "$JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.",
    )


def pretraining_config(
    flags: absl_flags.FlagValues, given: ml_collections.ConfigDict
) -> pretrain_config.PretrainConfig:
    """Returns the configuration of a pre-training run that is not started.

    Args:
        flags: the flags of the command, whose `--config.model.*` precede the sizes of a checkpoint.
        given: the value of --config, or what stands in for it.
    """
    typed = pretrain_config.pretraining(given)
    config, adopted = pretrain.adopt_architecture(typed, config_flag.overridden(flags, "model."))
    if adopted:
        progress.log(adopted)
    if config.causal_steps:
        progress.log(
            f"the step of masked LM, not that of the first {config.causal_steps:,}; for theirs, set "
            "--config.causal_steps=0 --config.objective=causal_lm --config.model.causal=true"
        )
    return config
