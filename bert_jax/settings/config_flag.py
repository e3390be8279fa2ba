"""The flag --config=NAME[:ARG], with a flag --config.FIELD=VALUE for each field of the config."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags as absl_flags

from bert_jax.errors import UserError
from bert_jax.settings import config_fields, config_files
from bert_jax.settings.flags import DEFINE, Define


class ConfigFlag(absl_flags.Flag):
    """The flag --config. `parse` sets its value to the config with all fields that were given."""

    command = ""  # that the config is for
    given: str | None = None  # the name or path that was given, or inferred
    note = ""  # a line about the inferred config
    # From the flags, the config that is inferred without --config, and {field: value} that other flags set.
    short: Callable[[absl_flags.FlagValues], tuple[str | None, dict[str, str]]] | None = None


class _Literal(absl_flags.ArgumentParser):
    """Parses the value of a field that is not a number, a text or a truth value."""

    def parse(self, argument: str) -> Any:
        try:
            return ast.literal_eval(argument)
        except (SyntaxError, ValueError):
            return argument


def add(define: Define, command: str, short: Any = None) -> None:
    """Defines --config of a command, which rejects configs of the other kind; see `ConfigFlag.short`."""
    text = "Config: a name from `bert-jax configs`, or a Python file. --config.a.b=V sets a field."
    flag = ConfigFlag(absl_flags.ArgumentParser(), absl_flags.ArgumentSerializer(), "config", None, text)
    flag.command, flag.short = command, short
    absl_flags.DEFINE_flag(flag, define.values)
    example = config_files.example(command)
    define.required["config"] = f"NAME, such as {example} (`bert-jax configs` lists the names)"


def parse(values: absl_flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses the flags of a command that has --config, and returns the arguments that are not flags.

    It raises UserError as `config_files.load`, and absl_flags.Error for a wrong flag or field.
    """
    flag = flag_of(values)
    values(["bert-jax", *argv], known_only=True)
    inferred, fields = flag.short(values) if flag.short else (None, {})
    flag.given = flag.value or inferred
    values.unparse_flags()
    config = config_files.load(flag.given, flag.command) if flag.given else None
    for name, value in config_fields.flatten(config) if config else ():
        define: Any = DEFINE.get(type(value), functools.partial(absl_flags.DEFINE, _Literal()))
        define(f"config.{name}", None, "", flag_values=values)
    args = values(["bert-jax", *argv], known_only=config is None)[1:]
    if config:
        given = {name: values[f"config.{name}"].value for name in overridden(values)}
        if twice := fields.keys() & given:
            name = min(twice)
            raise UserError(
                f"--config.{name}={given[name]}: another flag sets it to {fields[name]}; give only one"
            )
        config.update_from_flattened_dict(fields | given)
        flag.value = config.lock()
    return args


def flag_of(values: absl_flags.FlagValues) -> ConfigFlag:
    """Returns the flag --config of a command that has it."""
    flag = values["config"]
    assert isinstance(flag, ConfigFlag)
    return flag


def overridden(values: absl_flags.FlagValues, prefix: str = "") -> list[str]:
    """Returns the fields set by the command line whose names start with `prefix`, without the prefix."""
    prefix = f"config.{prefix}"
    return [name.removeprefix(prefix) for name in values if name.startswith(prefix) and values[name].present]
