"""The fields of a fine-tuning configuration: their defaults, their ranges, and the tasks that use each field.

A configuration has the fields of all tasks, so --config.task=NAME works with any config file. Setting a field
that the task does not use is an error. A task's `Config` declares the fields that it uses.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.settings import config_fields, defaults, run_config
from bert_jax.settings.config_fields import Field
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import registry
from bert_jax.tasks.base import FinetuneTask, TaskConfig
from bert_jax.tasks.registry import TaskSpec


@dataclasses.dataclass(frozen=True)
class TaskField(Field):
    """A field declared by tasks, with the classes of the tasks that use it."""

    users: tuple[type[FinetuneTask], ...] = ()


def fields() -> dict[str, TaskField]:
    """Returns the fields of all tasks by their dotted names."""
    found: dict[str, TaskField] = {}
    for task in dict.fromkeys(spec.task for spec in registry.tasks().values()):
        for name, field in config_fields.fields(task.Config()):
            users = (*(found[name].users if name in found else ()), task)
            found[name] = TaskField(**vars(field), users=users)
    return found


def declared(task: str = "") -> dict[str, Field]:
    """Returns all fields by their dotted names, with the defaults of a task or the general defaults."""
    found = dict(config_fields.fields(FinetuneConfig())) | fields()
    for name, value in registry.get(task).defaults.items() if task else ():
        found[name] = dataclasses.replace(found[name], default=value)
    return found


def default_config(size: str = "base", task: str = "classification") -> ml_collections.ConfigDict:
    """Returns the default configuration of a task.

    `size` is the size of the model if there is no `init_from`; see `bert_jax.models.sizes.named`.
    """
    spec = registry.get(task)
    config = defaults.finetune(size)
    for name, field in fields().items():
        assign(config, name, field.default)
    for name, value in spec.defaults.items():
        assign(config, name, value)
    config.task = spec.name
    return config


def complete(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """Returns a copy of a configuration with defaults for missing fields.

    A work directory of an older version lacks fields that were added later.
    """
    config = ml_collections.ConfigDict(config.to_dict())
    default = default_config(task=str(config.task))
    given = dict(config_fields.flatten(config))
    for name, value in config_fields.flatten(default):
        if name not in given:
            assign(config, name, value)
    return config


def finetuning(config: ml_collections.ConfigDict) -> FinetuneConfig:
    """Completes and validates the configuration of a fine-tuning run; see `check` for the errors."""
    config = complete(config)
    check(config)
    return _build(config)


def of_run(config: Mapping[str, Any]) -> FinetuneConfig:
    """Returns the configuration recorded in a work directory."""
    return _build(complete(ml_collections.ConfigDict(config)))


def _build(config: ml_collections.ConfigDict) -> FinetuneConfig:
    values = dict(config_fields.flatten(config))
    return dataclasses.replace(
        config_fields.build(FinetuneConfig, config),
        steps=values.get("steps", 0),
        of_tasks={name: values[name] for name in fields()},
    )


def of_task(config: FinetuneConfig) -> TaskConfig:
    """Returns the fields used by the task of a configuration."""
    return config_fields.build(registry.get(config.task).task.Config, config.to_dict())


def check(config: ml_collections.ConfigDict) -> None:
    """Raises UserError if a field of a complete configuration is unknown, invalid or without effect."""
    spec = registry.get(config.task)
    values = dict(config_fields.flatten(config))
    default = default_config(task=spec.name)
    known = dict(config_fields.flatten(default))
    for name in values.keys() - known.keys():
        lookup(default, name)
    config_fields.refuse_unused(values, known, of_other_tasks(spec))
    config_fields.check_values(config, declared())
    config_fields.refuse_unused(values, known, _unused(config, spec))


def override(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
    """Sets a field in the configuration of a finished run. Raises UserError if it is not valid."""
    spec, field = registry.get(config.task), fields()[name]
    config_fields.check(name, value, field)
    assign(config, name, value)
    unused = (*of_other_tasks(spec), *_unused(config, spec))
    reasons = ((one, reason) for one, reason in unused if one == name)
    config_fields.refuse_unused({name: value}, {name: field.default}, reasons)


def of_other_tasks(spec: TaskSpec) -> Iterator[tuple[str, str]]:
    """Yields (field, reason) for each field that only other tasks use."""
    for name, field in fields().items():
        if spec.task not in field.users:
            users = ", ".join(user.title for user in field.users)
            yield name, f"the task {spec.name} does not use it; it is for {users}"


def _unused(config: ml_collections.ConfigDict, spec: TaskSpec) -> Iterator[tuple[str, str]]:
    data = config.data
    if config.init_from and config.from_scratch:
        yield "init_ignore", "it has no effect with from_scratch"
    yield from config_fields.unused(_build(config), run_config.RULES)
    if config.optimizer.warmup_steps:
        yield "warmup_fraction", "optimizer.warmup_steps is set too"
    if not spec.file_name:
        yield "data_dir", f"the task {spec.name} needs data.train"
    if data.train and not data.eval and not (spec.file_name and config.data_dir):
        for name in ("early_stopping", "eval.every"):
            yield name, "it needs data.eval"
    yield from spec.task.unused(config)


def lookup(config: ml_collections.ConfigDict, name: str) -> Any:
    """Returns the value of the field with this dotted name, or raises UserError."""
    known = dict(config_fields.flatten(config))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "`bert-jax configs --fields NAME` lists the fields"
        raise UserError(f"{name}: a fine-tuning config has no such field; {hint}")
    return known[name]


def assign(config: ml_collections.ConfigDict, name: str, value: Any) -> None:
    """Sets the field with this dotted name; creates it if it does not exist."""
    *parents, last = name.split(".")
    for parent in parents:
        if parent not in config:
            config[parent] = ml_collections.ConfigDict()
        config = config[parent]
    config[last] = value
