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
import runpy

from absl import flags as absl_flags

from bert_jax.commands import output_flags
from bert_jax.errors import UserError
from bert_jax.io import atomic, checks, files
from bert_jax.settings import config_files


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    absl_flags.DEFINE_bool(
        "fields",
        False,
        "Print the fields and values of the config instead of the file.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_string(
        "output", None, "Write the copy to this file instead of printing it.", flag_values=flag_values
    )
    output_flags.define_overwrite(flag_values)


def run(flags, args: list[str]) -> None:
    if len(args) > 1:
        raise UserError(f"configs takes one name at most, but was given {len(args)}: {' '.join(args)}")
    if not args:
        if flags.fields or flags.output:
            raise UserError("which config? `bert-jax configs` lists the names")
        names = config_files.names()
        width = max(map(len, names))
        print("\n".join(f"{name:<{width}}  {config_files.summary(name)}" for name in names))
        return
    name, argument = config_files.split(args[0])
    path = config_files.find(name)
    if flags.fields:
        if flags.output:
            raise UserError("--fields and --output exclude each other: a list of fields is no config file")
        arguments = [] if argument is None else [argument]
        config = runpy.run_path(str(path))["get_config"](*arguments)
        print("\n".join(f"{field} = {value!r}" for field, value in config_files.fields(config)))
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
