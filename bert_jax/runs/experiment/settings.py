"""The settings with which the results of an experiment were computed, so that no mean is over several."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

import ml_collections

from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files, json_files
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.settings.experiments import HeldOut, Measure, Pretraining
from bert_jax.settings.typed.pretrain_config import PretrainConfig
from bert_jax.tasks import fields, table
from bert_jax.workdir import differences

FILE = "settings.json"

_OF_A_RUN = ("seed", "steps")  # the runs of an arm differ in the first; the second follows from the budget


@dataclasses.dataclass(frozen=True)
class Settings:
    """What determines the scores of a measure, or the model of a pre-training, except seed and budget.

    Attributes:
        values: the values by their names; those of a configuration have the dotted names of its fields.
        declared: the fields of that configuration.
    """

    values: Mapping[str, Any]
    declared: Mapping[str, Field]

    def relative_to(self, directory: str) -> Settings:
        """Returns the settings with relative paths in place of those inside a directory, which may move."""
        inside = os.path.join(directory, "")
        return Settings(
            {
                name: value.removeprefix(inside) if isinstance(value, str) else value
                for name, value in self.values.items()
            },
            self.declared,
        )


def of_pretraining(pretraining: Pretraining, config: ml_collections.ConfigDict) -> Settings:
    """Returns the settings of a pre-training.

    Args:
        pretraining: the pre-training.
        config: its configuration, always with the same number of steps. The contents of its records are
            compared, too.
    """
    found = _of_config(config, dict(config_fields.fields(PretrainConfig())))
    names: dict[str, Any] = {"records": pretraining.records, "share": pretraining.share}
    # Without a checkpoint, all fields are those of the configuration, and earlier versions recorded no list.
    if (config.init_from or config.distillation.init_layers) and pretraining.explicit_fields:
        names["explicit"] = sorted(pretraining.explicit_fields)
    return _with(found, names | _of_records(config.data.dir))


def of_finetuning(config: ml_collections.ConfigDict, split_files: Mapping[str, str]) -> Settings:
    """Returns the settings of a fine-tuning.

    Args:
        config: its configuration.
        split_files: the paths of its files by split. Their contents are compared, not the paths.
    """
    digests = {f"files.{split}": table.digest(path) for split, path in split_files.items()}
    return _with(_of_config(config, fields.declared(config.task)), digests)


def of_measure(measure: Measure) -> Settings:
    """Returns the settings of a measure that reads no files."""
    return Settings(dataclasses.asdict(measure), {})


def of_held_out(measure: HeldOut, records: str) -> Settings:
    """Returns the settings of a measure of held-out records, with the contents of their directory."""
    return _with(of_measure(measure), _of_records(records))


class RecordedSettings:
    """The settings of each measure of each arm that has a result, or is timed, stored in settings.json.

    Args:
        directory: the directory of the experiment.
    """

    def __init__(self, directory: str):
        self._directory, self._path = directory, os.path.join(directory, FILE)
        stored = json_files.read(self._path, {str: {str: dict}}) if files.exists(self._path) else {}
        self._values: dict[str, dict[str, dict[str, Any]]] = stored

    def has(self, arm: str, measure: str) -> bool:
        """Returns whether the settings of a measure are known; earlier versions did not record them."""
        return measure in self._values.get(arm, {})

    def add(self, arm: str, measure: str, settings: Settings) -> None:
        """Records the settings of a measure, and writes the file."""
        self._values.setdefault(arm, {})[measure] = _as_json(settings.values)
        json_files.write(self._path, self._values)

    def changes(self, arm: str, measure: str, settings: Settings) -> dict[str, tuple[Any, Any]]:
        """Returns how `settings` differ from the recorded ones; see `differences.changes`."""
        before, now = {"config": self._values[arm][measure]}, {"config": _as_json(settings.values)}
        return differences.changes(before, now, settings.declared)

    def check(self, arm: str, measure: str, settings: Settings) -> None:
        """Raises UserError if the recorded settings of a measure differ from `settings`, its present ones."""
        if differing := self.changes(arm, measure, settings):
            raise UserError(
                f"--workdir={self._directory} has results of arm {arm!r}, {measure}, with other settings: "
                f"{differences.list_changes(differing)}; undo the change, or choose another --workdir"
            )


def _of_config(config: ml_collections.ConfigDict, declared: Mapping[str, Field]) -> Settings:
    free = {name for name, field in declared.items() if field.resume == "free"}
    values = dict(config_fields.flatten(config))
    return Settings({name: x for name, x in values.items() if name not in {*free, *_OF_A_RUN}}, declared)


def _of_records(directories: str) -> dict[str, str]:
    """Returns the digest of comma-separated directories of records.

    It is not known, and not compared, if one of them does not exist: those of arms that are not run are not
    made.
    """
    found = comma_lists.paths(directories)
    if not all(files.exists(os.path.join(directory, manifests.FILE)) for directory in found):
        return {}
    return {"files.records": "+".join(manifests.read(directory)["fingerprint"] for directory in found)}


def _with(settings: Settings, further: Mapping[str, Any]) -> Settings:
    return dataclasses.replace(settings, values={**settings.values, **further})


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as a JSON file has them, in which tuples are lists."""
    return json.loads(json.dumps(values))
