"""The fine-tunings of an experiment: their configurations, and what is refused before the first run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.settings import config_files
from bert_jax.settings.experiments import Arm, Finetuning
from bert_jax.tasks import fields, registry
from bert_jax.tasks.readers import sources
from bert_jax.tasks.setup import split_file


def config_of(measure: Finetuning, arm: Arm, folder: str, **values: Any) -> ml_collections.ConfigDict:
    """Returns the configuration of a fine-tuning of an arm.

    Args:
        measure: the fine-tuning.
        arm: the arm, which may change fields.
        folder: the folder with its data; "" if the config names the files.
        **values: further fields, which the measure and the arm may change.

    Raises:
        UserError: there is no such config, or a fine-tuning has no such field.
    """
    config = config_files.load(measure.config, "finetune")
    config.eval.every, config.checkpoint.every = 10**6, 0
    if folder:
        values["data_dir"] = folder
    for name, value in (values | dict(measure.fields) | arm.fields(measure.name)).items():
        fields.lookup(config, name)  # refuses a name that no fine-tuning has
        fields.assign(config, name, value)
    return config


def split_files(config: ml_collections.ConfigDict) -> Iterator[tuple[str, str]]:
    """Yields (split, path) of the files of a fine-tuning."""
    run = fields.of_run(config)
    for split in ("train", "dev"):
        yield split, split_file(run, registry.get(run.task), split)


def check(measure: Finetuning, config: ml_collections.ConfigDict) -> None:
    """Raises UserError if a file of a fine-tuning is missing."""
    for _, file in split_files(config):
        for path in sources.parts(file):
            if not sources.exists(path):
                raise UserError(f"{measure.name}: {checks.no_such_file(path, 'its rows')}")
