"""Declares the fields of a run's configuration, and derives checks and defaults from the declarations.

Configurations are frozen dataclasses, whose fields `option` declares; see `bert_jax.settings.run_config` and
the `Config` of each task. The declarations determine the defaults, the checks of values, which fields may
change when a run resumes, and docs/config.md.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from bert_jax.errors import UserError
from bert_jax.models.config_checks import Field as Field
from bert_jax.models.config_checks import check as check
from bert_jax.models.config_checks import option as option

Config = TypeVar("Config")


# Kinds of options: fields that may change, or never may, when a run resumes; and two ranges of numbers.
free = functools.partial(option, resume="free")
fixed = functools.partial(option, resume="fixed")
share = functools.partial(option, minimum=0, maximum=1)
amount = functools.partial(option, minimum=0, maximum=10**6)


class Part:
    """A configuration, or one of its parts."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields of a config file, as a nested dict."""
        found = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Part):
                found[field.name] = value.to_dict()
            elif "field" in field.metadata:
                found[field.name] = value
        return found


def fields(config: Any, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Yields (dotted name, declaration) of every field; the values of `config` are the defaults."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")
        elif "field" in field.metadata:
            yield prefix + field.name, dataclasses.replace(field.metadata["field"], default=value)


def build(config: type[Config], values: Mapping[str, Any]) -> Config:
    """Returns a configuration with values of a nested mapping, whose other entries are ignored."""
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


def check_values(config: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Raises UserError for the first value that is not valid; all fields are declared, by dotted names."""
    for name, value in flatten(config):
        check(name, value, declared[name])


# Fields separated by spaces, the function that tells whether a run uses them, and what they need.
Rule = tuple[str, Callable[[Any], Any], str]


def unused(config: Any, rules: Iterable[Rule]) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field that the configured run does not use."""
    for names, is_used, needs in rules:
        if not is_used(config):
            yield from ((name, f"it needs {needs}") for name in names.split())


def refuse_unused(
    values: Mapping[str, Any], defaults: Mapping[str, Any], unused: Iterable[tuple[str, str]]
) -> None:
    """Raises UserError for the first unused field, with its reason, whose value is not the default."""
    for name, reason in unused:
        if name in values and values[name] != defaults[name]:
            raise UserError(f"{name}={values[name]}: {reason}")
