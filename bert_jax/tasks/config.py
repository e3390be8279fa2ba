"""The fields of a task's configuration, as frozen dataclasses.

Each task has a dataclass with exactly the fields that it uses. `option` declares a field with its default,
its range and its meaning. docs/config.md, the checks of values, and the list of the tasks that use a field
are all derived from these declarations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from bert_jax.settings import config_fields

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
_INT32 = 2**31 - 1

Config = TypeVar("Config", bound="TaskConfig | DataConfig")


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """Returns a dataclass field of a configuration.

    Args:
        default: the value unless a config file or a flag sets it. Its type is the type of the field.
        meaning: the description of the field in docs/config.md.
        **limits: arguments of `config_fields.Field`: the smallest and largest value, and whether the field
            may change on resume.
    """
    kind = _TYPES[type(default)]
    if kind == "int":
        limits = {"minimum": 0, "maximum": _INT32} | limits
    field = config_fields.Field(kind, **limits)
    return dataclasses.field(default=default, metadata={"field": field, "meaning": meaning})


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The `config.data.*` fields that every task uses."""

    text_a: str = option("", "the column of the text, by name or by number from 0")
    label: str = option("", "the column of the label")
    id: str = option("", "the column of the id; without one, examples are numbered from 0")
    format: str = option("auto", "by suffix; `tsv`, `csv`, `jsonl`; of questions `json`, of tags `conll`")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The fields that every task uses."""

    max_seq_length: int = option(
        128, "tokens with [CLS] and [SEP]; longer texts are cut, or have windows", minimum=4, maximum=2**24
    )
    metrics: str = option("", "names with commas between; the first one selects the best checkpoint")
    data: DataConfig = DataConfig()


def options(config: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field]]:
    """Yields (dotted name, field) for all fields of a configuration class, including nested dataclasses."""
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(field.default):
            yield from options(type(field.default), f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, field


def build(config: type[Config], values: Mapping[str, Any]) -> Config:
    """Returns an instance of a configuration class with the values of a nested mapping.

    Further entries of the mapping are ignored.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value, nested = values[field.name], type(field.default)
        found[field.name] = build(nested, value) if issubclass(nested, DataConfig) else value
    return config(**found)
