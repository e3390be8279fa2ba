"""The flag --config=NAME[:ARG], with a flag --config.FIELD=VALUE for each field of the config."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from typing import Any

from absl import flags as absl_flags

from bert_jax.errors import UserError
from bert_jax.io.wording import did_you_mean
from bert_jax.settings import config_fields, config_files
from bert_jax.settings.flags import DEFINE, Define


class ConfigFlag(absl_flags.Flag):
    """The flag --config. `parse` sets its value to the config with all fields that were given.

    Attributes:
        command: the command that the config is for.
        given: the name or path that was given, or inferred.
        short: returns, from the flags, the config that is inferred without --config (None if there is none),
            and {field: value} that other flags set; None for commands without such flags.
        note: a line about the inferred config.
    """

    command = ""
    given: str | None = None
    note = ""
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
    define.required["config"] = expected(command)


def expected(command: str) -> str:
    """Returns a description of the value of --config, for the message if it is missing."""
    return f"NAME, such as {config_files.example(command)} (`bert-jax configs` lists the names)"


def parse(values: absl_flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses the flags of a command that has --config.

    Returns:
        The arguments that are not flags.

    Raises:
        UserError: the config does not exist, cannot be read, or is of the other kind of training.
        absl_flags.Error: a flag or a field is unknown, or its value has the wrong type.
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
    args = values(["bert-jax", *argv])[1:]
    if config:
        given = {name: values[f"config.{name}"].value for name in overridden(values)}
        if twice := fields.keys() & given:
            name = min(twice)
            what = f"also set by a short flag{' or inferred' if inferred else ''}, to {fields[name]}"
            raise UserError(f"--config.{name}={given[name]}: {what}; give one, or --config=NAME and fields")
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


def field_flags(values: absl_flags.FlagValues) -> list[str]:
    """Returns the names of the flags config.FIELD; without --config, the flags of an example config."""
    config = config_files.load(flag_of(values).given or config_files.example(flag_of(values).command))
    return [f"config.{name}" for name, _ in config_fields.flatten(config)]


def unknown_field(values: absl_flags.FlagValues, unknown: str) -> str:
    """Returns the message for a flag config.FIELD of a field that the config does not have."""
    flag = flag_of(values)
    if not flag.given:
        return f"--{unknown} needs --config={expected(flag.command)}"
    known = field_flags(values)
    if inside := [name for name in known if name.startswith(f"{unknown}.")]:
        return f"--{unknown} is a group of fields; set one of them, such as --{inside[0]}"
    hint = did_you_mean(unknown, known, "--") or "; `bert-jax configs --fields NAME` lists its fields"
    return f"--{unknown}: the config has no such field{hint}"
