"""The teacher of a run: its architecture and its parameters."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection
from typing import Any, cast

from bert_jax import checkpoint, convert
from bert_jax.checkpoint.leaves import check_leaves, flatten, nest
from bert_jax.convert import families, surgery
from bert_jax.data import records
from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.models.config import ENCODER_FIELDS, EXECUTION_FIELDS, EncoderConfig, from_dict
from bert_jax.objectives.base import Objective
from bert_jax.objectives.distillation import (
    DistillableObjective,
    Distillation,
    check,
    parse_layers,
    parse_scales,
)
from bert_jax.parallel import sharding
from bert_jax.settings import config_fields
from bert_jax.settings.run_config import DistillationConfig
from bert_jax.tokenization import Tokenizer
from bert_jax.workdir import run_directory

_RECORD = "teacher"  # the entry of config.json with the teacher's architecture


def add_distillation(
    objective: Objective,
    config: DistillationConfig,
    head: str,
    tokenizer: Tokenizer | None,
    max_seq_length: int,
    workdir: os.PathLike | str,
) -> Objective:
    """Returns the objective of a run with its teacher, if it has one; only the teacher's shapes are read.

    The teacher has the head `head`, a key of `convert.HEADS`, and must have the vocabulary of the data's
    tokenizer and fit the longest row, of `max_seq_length` tokens. If the run in the work directory has
    started, its recorded teacher is used and none is read. It raises UserError if there is no teacher, if it
    does not fit the student or the data, or if a value is not valid.
    """
    if not config.teacher:
        return objective
    given = f"distillation.teacher={config.teacher}"
    if not hasattr(objective, "forward") or getattr(objective, "layers", None):
        raise UserError(f"{given}: {type(objective).__name__} does not support a teacher")
    student = cast(DistillableObjective, objective)
    factors = parse_scales(config.losses)
    teacher_config = _architecture(config.teacher, tokenizer, workdir)
    execution = {name: getattr(student.config, name) for name in EXECUTION_FIELDS}
    teacher_config = teacher_config.replace(**execution | {"remat": "none"})
    family = families.of(teacher_config)
    if max_seq_length > teacher_config.max_seq_length:
        raise UserError(
            f"{given}: it has {teacher_config.max_seq_length} positions, and the rows have {max_seq_length} "
            "tokens"
        )
    theirs, mine = teacher_config.vocab_size, student.config.vocab_size
    if "logits" in factors and head == "masked_lm" and theirs != mine:
        raise UserError(
            f"{given}: it has {theirs} word embeddings, and the student {mine}; set "
            f"--config.model.vocab_size={theirs}"
        )
    layers = parse_layers(config.layers)
    compared = [name for name in factors if name not in ("task", "logits")]
    check(compared, student.config, teacher_config, layers)
    names: dict[str, Any] = {"config": teacher_config}
    if hasattr(student, "classifier"):
        names["classifier"] = family.classifiers.get(head, student.classifier)
    elif hasattr(student, "head"):
        names |= {"head": family.masked_lm, "next_sentence_head": False}
    teacher = dataclasses.replace(cast(Any, student), **names)
    return Distillation(student, teacher, factors, config.temperature, layers)


def _architecture(path: str, tokenizer: Tokenizer | None, workdir: os.PathLike | str) -> EncoderConfig:
    """Returns the architecture of the teacher; a run that has started uses the recorded one."""
    if record := run_directory.read_started(workdir).get(_RECORD) if workdir else None:
        return from_dict({name: record[name] for name in ENCODER_FIELDS if name in record})
    config, theirs = convert.load_architecture(path)
    if tokenizer is not None:
        records.check_vocabulary("distillation.teacher", path, theirs, tokenizer)
    return config


def record(objective: Objective) -> dict[str, Any]:
    """Returns the entry of config.json that describes the teacher; empty if there is none."""
    if not isinstance(objective, Distillation):
        return {}
    teacher = objective.teacher.config
    return {_RECORD: {name: getattr(teacher, name) for name in ENCODER_FIELDS}}


def read_teacher(
    objective: Objective,
    path: str,
    head: str,
    workdir: os.PathLike | str,
    log: Callable[[str], None],
    labels: Collection[str] = (),
) -> Objective:
    """Returns a result of `add_distillation` with the teacher's parameters, unless the run has saved them.

    A teacher with another path than the run's is read and compared with the saved one. The teacher must have
    the labels of the data, if there are any, in this order. It raises UserError if the checkpoint at `path`
    lacks the head or some of its parameters, or has other labels.
    """
    if not isinstance(objective, Distillation) or _has_saved(workdir, path):
        return objective
    model = convert.load(path, log=log)
    if len(objective.teacher_shapes) > 1:  # it has a head
        if head == "masked_lm":
            model = surgery.change_head(model, head)
        if model.head != head:
            raise UserError(
                f"distillation.teacher={path} has the head {model.head}; expected the head {head}, "
                "fine-tuned on the task"
            )
        if labels and model.labels and tuple(labels) != tuple(model.labels):
            raise UserError(
                f"distillation.teacher={path} has the labels {', '.join(model.labels)}; expected the labels "
                f"of the training file, {', '.join(labels)}"
            )
    wanted = flatten(sharding.unbox(objective.teacher_shapes))
    check_leaves(model.source, model.params, wanted)
    params = {name: model.params[name].astype(like.dtype) for name, like in wanted.items()}
    count = sum(x.size for x in params.values())
    log(
        f"teacher: {model.source}, {counted(objective.teacher.config.num_hidden_layers, 'layer')}, "
        f"{count:,} parameters"
    )
    return dataclasses.replace(objective, teacher_params=nest(params))


def _has_saved(workdir: os.PathLike | str, path: str) -> bool:
    """Returns whether a run has saved a step, and thus its teacher, and the teacher had this path."""
    if not (workdir and checkpoint.parameter_names(os.path.join(workdir, "checkpoints"))):
        return False
    recorded = dict(config_fields.flatten(run_directory.read_started(workdir)["config"]))
    return recorded.get("distillation.teacher") == path
