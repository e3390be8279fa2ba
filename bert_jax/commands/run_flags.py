"""The flags of the commands that train."""

from __future__ import annotations

from absl import flags as absl_flags
from ml_collections import config_flags


def define_run_flags(flag_values: absl_flags.FlagValues, example: str, contents: str) -> None:
    """--config, --workdir and --compilation_cache.

    Args:
        example: a config file, for the help of --config.
        contents: what goes into the work directory.
    """
    config_flags.DEFINE_config_file(
        "config",
        None,
        f"The run, like {example}; --config.a.b=V sets a field of it.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string("workdir", None, f"Where {contents} go.", flag_values=flag_values)
    absl_flags.DEFINE_string(
        "compilation_cache",
        None,
        "Directory that keeps compiled programs between runs; empty for none. Default: "
        "$JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.",
        flag_values=flag_values,
    )
