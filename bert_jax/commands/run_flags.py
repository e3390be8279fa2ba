"""Flags that several commands have."""

from __future__ import annotations

import shlex

from absl import flags as absl_flags

from bert_jax.commands.process_flags import define_process_flags
from bert_jax.settings import config_files


def define_run_flags(flag_values: absl_flags.FlagValues, command: str, example: str, contents: str) -> None:
    """--config, --workdir, --compilation_cache and the flags of several processes.

    Args:
        command: the command that has the flags.
        example: a config, for the help of --config.
        contents: what goes into the work directory.
    """
    config_files.define_flag(flag_values, command, f"The run, such as {example}.")
    absl_flags.DEFINE_string("workdir", None, f"Where {contents} go.", flag_values=flag_values)
    absl_flags.DEFINE_string(
        "compilation_cache",
        None,
        "Directory that keeps compiled programs between runs; empty for none. Default: "
        "$JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.",
        flag_values=flag_values,
    )
    define_process_flags(flag_values)


def command_line(command: str, flags: absl_flags.FlagValues) -> str:
    """`bert-jax COMMAND` with the flags that were given, as a shell takes it."""
    given = []
    for name in flags:
        flag = flags[name]
        if flag.present:
            value = getattr(flag, "config_filename", flag.value)  # config_filename: of a config flag
            given += [f"--{name}={one}" for one in (value if isinstance(value, list) else [value])]
    return shlex.join(["bert-jax", command, *given])


def define_threshold_flag(flag_values: absl_flags.FlagValues) -> None:
    """--null_score_diff_threshold, of the commands that answer questions."""
    absl_flags.DEFINE_float(
        "null_score_diff_threshold",
        None,
        "Of SQuAD 2.0: no answer is predicted where its score is above the best answer's by more. Default: "
        "the run's.",
        flag_values=flag_values,
    )
