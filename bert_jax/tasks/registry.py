"""The registry of fine-tuning tasks.

Each subpackage of `bert_jax.tasks` registers its tasks in `TASKS`, a sequence of `TaskSpec`. There is no
other list of tasks.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from bert_jax.errors import UserError
from bert_jax.tasks.spec import TaskSpec


@functools.cache
def tasks() -> Mapping[str, TaskSpec]:
    """Returns all tasks by name; those for the user's own files come first."""
    parent = importlib.import_module("bert_jax.tasks")
    packages = (module.name for module in pkgutil.iter_modules(parent.__path__) if module.ispkg)
    modules = (importlib.import_module(f"{parent.__name__}.{name}") for name in packages)
    specs = (spec for module in modules for spec in getattr(module, "TASKS", ()))
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: (bool(spec.file_name), spec.name))}


def get(name: str) -> TaskSpec:
    """Returns the task with this name. Case, hyphens and underscores do not matter: "SST-2" is "sst2".

    Raises:
        UserError: there is no such task.
    """
    spec = tasks().get(name.lower().replace("-", "").replace("_", ""))
    if spec is None:
        raise UserError(f"task={name}: expected one of {', '.join(tasks())}")
    return spec
