"""The registry of fine-tuning tasks. Each subpackage of `bert_jax.tasks` lists its tasks in `TASKS`."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import pkgutil
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax import hub
from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.io.wording import alternatives
from bert_jax.tasks.table import Columns


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task with a name for `config.task`.

    Attributes:
        name: the name in lower case, without punctuation.
        task: the subclass of `base.FinetuneTask` that reads, encodes and scores the task.
        metrics: the metrics in the order of the report; empty for all metrics of the class.
        columns: the columns of the task's files; None if the configuration names them.
        test_columns: the columns of the benchmark's test file without labels; None if they are the same.
        train_columns: the columns of the benchmark's training file; None if they are the same.
        labels: the labels in the order of the logits; None if they are inferred from the training rows.
        spellings: {other spelling of a label in the files: label}.
        relevant: for two labels, the label of a query paired with a relevant document; empty if unknown.
        folder: a subfolder of `data_dir` that may contain the files.
        file_name: the name of a split's file, with {split}; empty if the configuration names each file.
        splits: (split, names that may replace {split}) for each split with differently named files.
        hub_columns: the columns of the task's Parquet files on the hub; None if it has no data set there.
        hub_configs: the configurations of that data set if there is one per language, of which training reads
            the first one; empty if its configurations are the names of tasks.
        defaults: configuration fields with task-specific defaults.
    """

    name: str
    task: type[Any]
    metrics: tuple[str, ...] = ()
    columns: Columns | None = None
    test_columns: Columns | None = None
    train_columns: Columns | None = None
    labels: tuple[str, ...] | None = None
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    relevant: str = ""
    folder: str = ""
    file_name: str = ""
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    hub_columns: Columns | None = None
    hub_configs: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def file(self, data_dir: str, split: str) -> str:
        """Returns the path of a split: DATA_DIR/FOLDER/FILE_NAME, DATA_DIR/FILE_NAME, or files from the hub.

        `data_dir` is a folder, or `hf:` with the name of a data set on the hub.
        """
        splits = dict(self.splits).get(split, (split,))
        if self.hub_columns and data_dir.startswith(hub.DATA):
            name, _, revision = data_dir.partition("@")
            configs: Collection[str] = (self.name,)
            if self.hub_configs:
                configs = self.hub_configs[: 1 if split == "train" else None]
            elif split == "diagnostic":  # one of MNLI's files, but a separate configuration on the hub
                configs, split = ("ax",), "test"
            else:
                split = splits[0].replace("dev", "validation")
            names = [f"{name}:{config}" + (revision and f"@{revision}") for config in configs]
            return ",".join(path for each in names for path in hub.data_files(each, split))
        names = [self.file_name.format(split=name) for name in splits]
        tried = dict.fromkeys(
            os.path.join(data_dir, folder, name) for name in names for folder in (self.folder, "")
        )
        for path in tried:
            if files.exists(path):
                return path
        raise UserError(f"data_dir={data_dir}: expected a {split} file, {alternatives(tried)}")


@functools.cache
def tasks() -> Mapping[str, TaskSpec]:
    """Returns all tasks by name; tasks for the user's own files come first."""
    parent = importlib.import_module("bert_jax.tasks")
    packages = (module.name for module in pkgutil.iter_modules(parent.__path__) if module.ispkg)
    modules = (importlib.import_module(f"{parent.__name__}.{name}") for name in packages)
    specs = (spec for module in modules for spec in getattr(module, "TASKS", ()))
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: (bool(spec.file_name), spec.name))}


def spelled(name: str) -> str:
    """Normalizes the name of a task to its key in `tasks`: "SST-2" becomes "sst2"."""
    return name.lower().replace("-", "").replace("_", "")


def chosen(config: str, given: str, names: Collection[str]) -> str:
    """Returns the task in `names` for the argument `given` of a config. Raises UserError if unknown."""
    name = spelled(given)
    if name in names:
        return name
    raise UserError(f"{config}{given and ':'}{given}: expected {config}:TASK, TASK one of {', '.join(names)}")


def get(name: str) -> TaskSpec:
    """Returns the task with this name, normalized by `spelled`. Raises UserError if it is unknown."""
    spec = tasks().get(spelled(name))
    if spec is None:
        raise UserError(f"task={name}: expected one of {', '.join(tasks())}")
    return spec
