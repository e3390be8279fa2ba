"""The flag --config=NAME[:ARG], with a flag --config.FIELD=VALUE for each field of the config."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any

from absl import flags as absl_flags

from bert_jax.io.wording import did_you_mean
from bert_jax.settings import config_fields, config_files
from bert_jax.settings.flags import DEFINE, Define


class ConfigFlag(absl_flags.Flag):
    """The flag --config. `parse` sets its value to the config with all fields that were given.

    Attributes:
        command: the command that the config is for.
        given: the name or path that was given.
    """

    command = ""
    given: str | None = None


class _Literal(absl_flags.ArgumentParser):
    """Parses the value of a field that is not a number, a text or a truth value."""

    def parse(self, argument: str) -> Any:
        try:
            return ast.literal_eval(argument)
        except (SyntaxError, ValueError):
            return argument


def add(define: Define, command: str, text: str, required: bool = True) -> None:
    """Defines --config of a command, which refuses configs of the other kind of training."""
    text += " A name (`bert-jax configs` lists them) or a Python file; --config.a.b=V sets a field."
    flag = ConfigFlag(absl_flags.ArgumentParser(), absl_flags.ArgumentSerializer(), "config", None, text)
    flag.command = command
    absl_flags.DEFINE_flag(flag, define.values)
    if required:
        define.required["config"] = expected(command)


def expected(command: str) -> str:
    """Returns what has to be given with --config, for the message to a user who did not give it."""
    return f"NAME, such as {config_files.example(command)} (`bert-jax configs` lists the names)"


def parse(values: absl_flags.FlagValues, argv: Sequence[str]) -> list[str]:
    """Parses the flags of a command that has --config.

    Returns:
        The arguments that are not flags.

    Raises:
        UserError: the config does not exist, cannot be read, or is of the other kind of training.
        absl_flags.Error: a flag or a field is unknown, or its value has the wrong type.
    """
    flag = _flag(values)
    values(["bert-jax", *argv], known_only=True)
    flag.given = flag.value
    values.unparse_flags()
    config = config_files.load(flag.given, flag.command) if flag.given else None
    for name, value in config_fields.flatten(config) if config else ():
        define: Any = DEFINE.get(type(value), functools.partial(absl_flags.DEFINE, _Literal()))
        define(f"config.{name}", None, "", flag_values=values)
    args = values(["bert-jax", *argv])[1:]
    if config:
        given = {name: values[f"config.{name}"].value for name in overridden(values)}
        config.update_from_flattened_dict(given)
        flag.value = config.lock()
    return args


def _flag(values: absl_flags.FlagValues) -> ConfigFlag:
    flag = values["config"]
    assert isinstance(flag, ConfigFlag)
    return flag


def overridden(values: absl_flags.FlagValues, prefix: str = "") -> list[str]:
    """Returns the fields that the command line sets, of those whose names start with `prefix`, without it."""
    prefix = f"config.{prefix}"
    return [name.removeprefix(prefix) for name in values if name.startswith(prefix) and values[name].present]


def field_flags(values: absl_flags.FlagValues) -> list[str]:
    """Returns the names of the flags config.FIELD, of an example config if none was given."""
    config = config_files.load(_flag(values).given or config_files.example(_flag(values).command))
    return [f"config.{name}" for name, _ in config_fields.flatten(config)]


def unknown_field(values: absl_flags.FlagValues, unknown: str) -> str:
    """Returns the message for a flag config.FIELD of a field that the config does not have."""
    flag = _flag(values)
    if not flag.given:
        return f"--{unknown} needs --config={expected(flag.command)}"
    known = field_flags(values)
    if inside := [name for name in known if name.startswith(f"{unknown}.")]:
        return f"--{unknown} is a group of fields; set one of them, such as --{inside[0]}"
    hint = did_you_mean(unknown, known, "--") or "; `bert-jax configs --fields NAME` lists its fields"
    return f"--{unknown}: the config has no such field{hint}"
