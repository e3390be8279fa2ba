"""List the config files that came with bert-jax, or print one to start your own from.

    bert-jax configs
    bert-jax configs pretrain/tiny
    bert-jax configs pretrain/tiny --output=mine.py
    bert-jax configs --fields finetune/glue:mrpc

`--config=NAME` of pretrain, finetune, estimate and bench runs one; `--config=mine.py` runs a copy that you
changed. --fields prints every field of a config with its value: what `--config.FIELD=VALUE` can set.
"""

from __future__ import annotations

import os

from absl import flags as absl_flags

from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files
from bert_jax.settings import config_fields, config_files
from bert_jax.settings.flags import Define

ARGUMENTS = "[NAME]"


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.boolean("fields", "Print the fields and values of the config instead of the file.")
    define.string("output", "Write the copy to this file instead of printing it.")
    define.overwrite()


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    """Runs the command."""
    if len(args) > 1:
        raise UserError(f"configs takes at most one name, but got {len(args)}: {' '.join(args)}")
    if not args:
        if flags.fields or flags.output:
            raise UserError("--fields and --output need the NAME of a config; `bert-jax configs` lists them")
        names = config_files.names()
        width = max(map(len, names))
        print("\n".join(f"{name:<{width}}  {config_files.summary(name)}" for name in names))
        return
    path = config_files.find(config_files.split(args[0])[0])
    if flags.fields:
        if flags.output:
            raise UserError(
                "--fields and --output exclude each other: the list of fields is not a config file"
            )
        config = config_files.load(args[0])
        print("\n".join(f"{field} = {value!r}" for field, value in config_fields.flatten(config)))
        return
    source = path.read_text(encoding="utf-8")
    if not flags.output:
        print(source, end="")
        return
    if not flags.output.endswith(".py"):
        raise UserError(f"--output={flags.output}: expected a name ending in .py")
    checks.check_free(flags.output, flags.overwrite)
    try:
        files.make_directory(files.parent(flags.output))
        atomic.write_text(flags.output, source)
    except OSError as error:
        raise UserError(f"--output={flags.output}: {error.strerror}") from error
    shown = flags.output if files.is_remote(flags.output) else os.path.relpath(flags.output)
    print(f"wrote {flags.output}; use it as --config={shown}")
