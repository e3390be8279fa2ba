"""Defines the flags of a command, and which of them are required."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from absl import flags as absl_flags


class Define:
    """Adds flags to those of a command.

    Every method takes the name of a flag, its help text, its default and `required`: what has to be given,
    for the message to a user who did not give it, such as "FILE with one text per line".

    Attributes:
        values: the flags of the command.
        required: {name: what has to be given} of the required flags.
    """

    def __init__(self, values: absl_flags.FlagValues):
        self.values = values
        self.required: dict[str, str] = {}

    def string(self, name: str, text: str, default: str | None = None, required: str = "") -> None:
        """Adds --NAME=TEXT."""
        self._add(absl_flags.DEFINE_string, name, default, text, required)

    def strings(self, name: str, text: str, default: list[str] | None = None, required: str = "") -> None:
        """Adds --NAME=TEXT, which may be given several times."""
        self._add(absl_flags.DEFINE_multi_string, name, default, text, required)

    def integer(self, name: str, text: str, default: int | None = None) -> None:
        """Adds --NAME=INTEGER."""
        self._add(absl_flags.DEFINE_integer, name, default, text)

    def number(self, name: str, text: str, default: float | None = None) -> None:
        """Adds --NAME=FLOAT."""
        self._add(absl_flags.DEFINE_float, name, default, text)

    def boolean(self, name: str, text: str, default: bool | None = False) -> None:
        """Adds --NAME and --noNAME."""
        self._add(absl_flags.DEFINE_bool, name, default, text)

    def choice(self, name: str, choices: Iterable[str], text: str, default: str | None = None) -> None:
        """Adds --NAME=CHOICE."""
        absl_flags.DEFINE_enum(name, default, list(choices), text, flag_values=self.values)

    def overwrite(self) -> None:
        """Adds --overwrite, for commands whose output takes long to make."""
        self.boolean("overwrite", "Replace the output if it exists.")

    def json(self) -> None:
        """Adds --json."""
        self.boolean("json", "Print JSON, for use by programs.")

    def _add(self, define: Any, name: str, default: Any, text: str, required: str = "") -> None:
        define(name, default, text, flag_values=self.values)
        if required:
            self.required[name] = required


def command_line(command: str, flags: absl_flags.FlagValues) -> str:
    """Returns `bert-jax COMMAND` with the flags that were given, quoted for a shell."""
    given = []
    for name in flags:
        flag = flags[name]
        if flag.present:
            value = getattr(flag, "given", flag.value)  # of --config, what was given and not the config
            given += [f"--{name}={one}" for one in (value if isinstance(value, list) else [value])]
    return shlex.join(["bert-jax", command, *given])
