"""Fields of a run's configuration: how one is declared, and what follows from its declaration.

Configurations are frozen dataclasses, whose fields `option` declares; see `bert_jax.settings.run_config` and
the `Config` of each task. Their defaults, the checks of values, what may change when a run resumes, and
docs/config.md follow from the declarations.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from bert_jax.errors import UserError

INT32 = 2**31 - 1

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a configuration.

    Attributes:
        default: the value unless a config file or a flag sets it.
        meaning: the description in docs/config.md.
        type: "int", "float", "bool", "str" or "regex". A float has to be finite, and may be given as an int.
        minimum, maximum: inclusive bounds.
        above, below: exclusive bounds.
        resume: whether the field may change when a run resumes. "same": only with --allow_changes. "free":
            yes, since it affects where, how fast or how often something is done, but not what is computed.
            "fixed": no, since the shapes in the checkpoint depend on it.
        optional: whether None is a valid value.
        choices: the valid texts; empty for any.
    """

    default: Any
    meaning: str
    type: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    resume: str = "same"
    optional: bool = False
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """Returns the requirement that a value violates, or None if the value is valid."""
        if value is None and self.optional:
            return None
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}"
        if self.type == "bool":
            return None if isinstance(value, bool) else "must be true or false"
        if self.type in ("str", "regex"):
            if not isinstance(value, str):
                return "must be a text"
            try:
                re.compile(value if self.type == "regex" else "")
            except re.error as error:
                return f"must be a regular expression ({error})"
            return None
        kind: Any = numbers.Integral if self.type == "int" else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            return "must be a whole number" if self.type == "int" else "must be a number"
        if self.type == "float" and not -sys.float_info.max <= value <= sys.float_info.max:
            return "must be a finite number"
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}"
        if self.above is not None and value <= self.above:
            return f"must be more than {self.above:g}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:,}"
        if self.below is not None and value >= self.below:
            return f"must be less than {self.below:g}"
        return None


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """Returns a dataclass field that declares a field of a configuration.

    Args:
        default: the default value. Its type is the type of the field, unless `limits` has another one.
        meaning: the description in docs/config.md.
        **limits: further arguments of `Field`. The bounds of a whole number are 0 and 2^31 - 1 by default.
    """
    limits = limits if "type" in limits else {"type": _TYPES[type(default)]} | limits
    if limits["type"] == "int":
        limits = {"minimum": 0, "maximum": INT32} | limits
    return dataclasses.field(default=default, metadata={"field": Field(default, meaning, **limits)})


# Kinds of options: fields that may change, or never may, when a run resumes; and two ranges of numbers.
free = functools.partial(option, resume="free")
fixed = functools.partial(option, resume="fixed")
share = functools.partial(option, minimum=0, maximum=1)
amount = functools.partial(option, minimum=0, maximum=10**6)


class Part:
    """A configuration, or one of its parts."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields that a config file has, as a nested dict."""
        found = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Part):
                found[field.name] = value.to_dict()
            elif "field" in field.metadata:
                found[field.name] = value
        return found


def fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yields (dotted name, declaration) of every field of a configuration and of its parts.

    Args:
        config: the configuration whose values are the defaults, such as `PretrainConfig()`.
        prefix: added in front of each name.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")
        elif "field" in field.metadata:
            yield prefix + field.name, dataclasses.replace(field.metadata["field"], default=value)


def build(config: type[Config], values: Mapping[str, Any]) -> Config:
    """Returns an instance of a configuration class with the values of a nested mapping.

    Further entries of the mapping are ignored.
    """
    return config(
        **{
            field.name: build(type(field.default), values[field.name])
            if dataclasses.is_dataclass(field.default)
            else values[field.name]
            for field in dataclasses.fields(config)  # type: ignore[arg-type]  # `type[Config]` is a dataclass
            if dataclasses.is_dataclass(field.default) or "field" in field.metadata
        }
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of every field of a nested mapping."""
    for name, value in config.items():
        if hasattr(value, "items"):  # a mapping or a ConfigDict
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def check(name: str, value: Any, field: Field) -> None:
    """Raises UserError, which names the field, if a value is not valid."""
    problem = field.problem(value)
    if problem:
        raise UserError(f"{name}={value!r:.40} {problem}")


def check_values(config: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Raises UserError for the first value of a configuration that is not valid; the message names the field.

    Args:
        config: the configuration, all of whose fields are declared.
        declared: the fields by their dotted names.
    """
    for name, value in flatten(config):
        check(name, value, declared[name])


def refuse_unused(
    values: Mapping[str, Any], defaults: Mapping[str, Any], unused: Iterable[tuple[str, str]]
) -> None:
    """Raises UserError for the first field that is set although it has no effect in the configured run.

    Args:
        values: the values of the fields by their dotted names.
        defaults: the values that they have if they are not set.
        unused: (field, reason) for each field without an effect.
    """
    for name, reason in unused:
        if values[name] != defaults[name]:
            raise UserError(f"{name}={values[name]}: {reason}; leave it at {defaults[name]!r}")
