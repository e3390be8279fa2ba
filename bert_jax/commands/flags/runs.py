"""The flags of commands that train: --config, --workdir, --compilation_cache and those of processes."""

from bert_jax.commands.flags import processes
from bert_jax.settings import config_flag
from bert_jax.settings.flags import Define


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
    define.string(
        "compilation_cache",
        "Directory that keeps compiled programs between runs; empty for none. Default: "
        "$JAX_COMPILATION_CACHE_DIR or ~/.cache/bert_jax/xla.",
    )
    processes.add(define)
