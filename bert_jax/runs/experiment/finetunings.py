"""The fine-tunings of an experiment: their configurations, and what is refused before the first run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from bert_jax.errors import UserError
from bert_jax.io import checks
from bert_jax.settings import config_files
from bert_jax.settings.experiments import Arm, Finetuning
from bert_jax.tasks import fields, metrics, registry, table
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
    """Raises UserError if a fine-tuning lacks a file, or does not report a metric of the measure.

    The metrics of a task that is configured without any may depend on its data; `scores_of` checks them.
    """
    for split, file in split_files(config):
        if not file:
            what, field = ("train", "data.train") if split == "train" else ("evaluate", "data.eval")
            raise UserError(f"{measure.name}: no file to {what} on; set the field {field}")
        for path in table.parts(file):
            if not table.exists(path):
                raise UserError(f"{measure.name}: {checks.no_such_file(path, 'its rows')}")
    reported = metrics.listed(config.metrics) or registry.get(config.task).metrics
    if reported:
        _check_metrics(measure, reported)


def scores_of(measure: Finetuning, scores: Mapping[str, float]) -> dict[str, float]:
    """Returns the scores of the metrics of a measure, from all scores of a fine-tuning.

    Raises:
        UserError: the fine-tuning does not report one of the metrics.
    """
    _check_metrics(measure, list(scores))
    return {name: scores[name] for name in measure.metrics}


def _check_metrics(measure: Finetuning, reported: Sequence[str]) -> None:
    for name in measure.metrics:
        if name not in reported:
            raise UserError(
                f"measure {measure.name!r}: its fine-tuning reports {', '.join(reported)}, and not "
                f"{name!r}; choose one of these, or set the field `metrics`"
            )
