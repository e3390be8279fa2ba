"""Defines the flags of a command, and which of them are required."""

from __future__ import annotations

import dataclasses
import functools
import shlex
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from absl import flags as absl_flags

# Functions of absl that define a flag, by the type of its values.
DEFINE: Mapping[type, Any] = {
    bool: absl_flags.DEFINE_bool,
    int: absl_flags.DEFINE_integer,
    float: absl_flags.DEFINE_float,
    str: absl_flags.DEFINE_string,
    tuple: absl_flags.DEFINE_multi_string,
}
Options = TypeVar("Options")


class Define:
    """Adds flags to a command.

    Every method takes the name of a flag, its help text, its default and `required`: a description of the
    missing value for the error message, such as "FILE with one text per line".

    Attributes:
        values: the flags of the command.
        required: {name: description of its value} of the required flags.
    """

    def __init__(self, values: absl_flags.FlagValues):
        self.values = values
        self.required: dict[str, str] = {}

    def _add(self, define: Any, name: str, text: str, default: Any = None, required: str = "") -> None:
        define(name, default, text, flag_values=self.values)
        if required:
            self.required[name] = required

    string = functools.partialmethod(_add, absl_flags.DEFINE_string)
    strings = functools.partialmethod(_add, absl_flags.DEFINE_multi_string)  # may be given several times
    integer = functools.partialmethod(_add, absl_flags.DEFINE_integer)
    number = functools.partialmethod(_add, absl_flags.DEFINE_float)

    def boolean(self, name: str, text: str, default: bool | None = False) -> None:
        """Adds --NAME and --noNAME."""
        self._add(absl_flags.DEFINE_bool, name, text, default)

    def choice(self, name: str, choices: Iterable[str], text: str, default: str | None = None) -> None:
        """Adds --NAME=CHOICE."""
        absl_flags.DEFINE_enum(name, default, list(choices), text, flag_values=self.values)

    def options(self, options: type, *names: str) -> None:
        """Adds a flag for each field of a dataclass that has a help text, or for the named fields.

        They are of the types bool, int, float, str and tuple[str, ...], or None. Their metadata are `flag`,
        the help text, and optionally `choices`, the valid values, and `required`, a description of the value.
        """
        kinds = typing.get_type_hints(options)
        for field in dataclasses.fields(options):
            if "flag" not in field.metadata or (names and field.name not in names):
                continue
            text, required = field.metadata["flag"], field.metadata.get("required", "")
            default = None if field.default in (dataclasses.MISSING, ()) else field.default
            if choices := field.metadata.get("choices"):
                self.choice(field.name, choices, text, default)
                continue
            kind = kinds[field.name]
            kind = typing.get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
            self._add(DEFINE[typing.get_origin(kind) or kind], field.name, text, default, required)

    def overwrite(self) -> None:
        """Adds --overwrite, for commands whose output takes long to make."""
        self.boolean("overwrite", "Replace existing output.")

    def json(self) -> None:
        """Adds --json."""
        self.boolean("json", "Print JSON.")


def read_options(values: absl_flags.FlagValues, options: type[Options]) -> Options:
    """Returns the options whose flags `Define.options` has added."""
    found = {}
    for field in dataclasses.fields(options):  # type: ignore[arg-type]  # it is a dataclass
        if "flag" not in field.metadata:
            continue
        value = values[field.name].value
        found[field.name] = tuple(value or ()) if isinstance(value, list) or field.default == () else value
    return options(**found)


def command_line(command: str, flags: absl_flags.FlagValues) -> str:
    """Returns `bert-jax COMMAND` with the flags that were given, quoted for a shell."""
    given = []
    for name in flags:
        flag = flags[name]
        if flag.present:
            value = getattr(flag, "given", flag.value)  # for --config, the given text and not the config
            given += [f"--{name}={one}" for one in (value if isinstance(value, list) else [value])]
    return shlex.join(["bert-jax", command, *given])
