"""What a pre-training run starts from: architecture and parameters of a checkpoint or of a teacher."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection
from typing import Any

from bert_jax import convert
from bert_jax.data import vocabularies
from bert_jax.models.config import RUN_FIELDS
from bert_jax.models.heads import structures
from bert_jax.objectives.base import Objective
from bert_jax.runs import distillation
from bert_jax.settings.typed.model_config import ModelConfig
from bert_jax.settings.typed.pretrain_config import PretrainConfig
from bert_jax.training.optimization.adapters import load_initial
from bert_jax.workdir import run_directory
from bert_jax.workdir.run_directory import REPORT_FILE, WorkDir


def adopt_architecture(
    config: PretrainConfig,
    explicit: Collection[str],
    workdir: os.PathLike | str = "",
    tokenizer: Any = None,
) -> tuple[PretrainConfig, str]:
    """Returns the configuration with the architecture of the checkpoint that the model starts with, if any.

    It is `config.init_from`, or the teacher of which the model takes layers.

    Args:
        config: the configuration of a pre-training run.
        explicit: see `pretrain.pretrain`.
        workdir: the work directory. If a run from the same checkpoint has already started there, its
            architecture is taken from the work directory, and the checkpoint is not read.
        tokenizer: the tokenizer of the records, which must have the checkpoint's vocabulary.

    Returns:
        The configuration, and a message that describes the architecture and its changes to the configuration;
        "" if the checkpoint was not read.

    Raises:
        UserError: the checkpoint does not exist, has another vocabulary, or differs from an explicit size; or
            a field is set that only fine-tuning reads.
    """
    # The pooling is saved with the model, and read by the fine-tunings that start from it.
    structures.check_fields(config.model.to_dict(), ("classifier_pooling",), "pre-training")
    of_teacher = bool(config.distillation.init_layers)
    before = config.model.to_dict()
    if not (config.init_from or of_teacher):
        return _with_model(config, before), ""
    if workdir and (started := run_directory.read_started(workdir)):
        run = started["config"]
        then = run.get("distillation", {}).get("teacher") if of_teacher else run.get("init_from")
        if then == (config.distillation.teacher if of_teacher else config.init_from):
            recorded = {name: value for name, value in run["model"].items() if name in before}
            kept = {name: before[name] for name in (*RUN_FIELDS, *explicit)}
            return _with_model(config, before | recorded | kept), ""
    if of_teacher:
        return distillation.adopt_widths(config, explicit, tokenizer)
    fields, theirs = convert.adopt_architecture(config.init_from, before, explicit)
    if tokenizer is not None:
        vocabularies.check("init_from", config.init_from, theirs, tokenizer)
    replaced = [
        name for name in fields if fields[name] != before[name] and (name, before[name]) != ("vocab_size", 0)
    ]
    instead = (
        f"; the config has {', '.join(f'{name} {before[name]}' for name in replaced)}" if replaced else ""
    )
    message = convert.describe_architecture(config.init_from, fields)
    return _with_model(config, fields), message + instead


def load_function(
    config: PretrainConfig, objective: Objective, workdir: WorkDir, log: Callable[[str], None]
) -> Callable[[Any], Any] | None:
    """Returns a function that loads the parameters of `init_from` or of the teacher, or None for neither.

    The function takes the abstract parameters and returns the arrays. It also writes what it loaded to
    `REPORT_FILE` in the work directory, and logs it.
    """
    if not (config.init_from or config.distillation.init_layers):
        return None

    def load(abstract_params):
        if config.distillation.init_layers:
            params, report = distillation.load_student(config, abstract_params, log)
        else:
            params, report = load_initial(config, objective, abstract_params, log)
        log(str(report))
        workdir.write_json(REPORT_FILE, dataclasses.asdict(report))
        return params

    return load


def _with_model(config: PretrainConfig, fields: dict[str, Any]) -> PretrainConfig:
    """Returns the configuration with these fields of the model, and those that the adapter sets."""
    own = config.adapter.model_fields(fields["hidden_size"])
    return dataclasses.replace(config, model=ModelConfig(**fields | own))
