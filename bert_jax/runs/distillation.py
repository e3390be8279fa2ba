"""The teacher of a run: its architecture, its parameters, and a student that starts with its layers."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from bert_jax import checkpoint, convert
from bert_jax.checkpoint.leaves import check_shapes, flatten, nest
from bert_jax.convert import families, surgery
from bert_jax.convert.formats.base import place
from bert_jax.data import vocabularies
from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.models.config import ENCODER_FIELDS, HEAD_FIELDS, RUN_FIELDS, EncoderConfig, from_dict
from bert_jax.objectives.base import Objective
from bert_jax.objectives.distillation import (
    Distillation,
    Models,
    PairOptions,
    check,
    parse_layers,
    parse_scales,
)
from bert_jax.objectives.distillation.objective import Taught
from bert_jax.parallel import sharding
from bert_jax.settings import config_fields
from bert_jax.settings.typed.distillation_config import DistillationConfig
from bert_jax.settings.typed.model_config import ModelConfig
from bert_jax.settings.typed.pretrain_config import PretrainConfig
from bert_jax.settings.typed.run_config import RunConfig
from bert_jax.tokenization import Tokenizer
from bert_jax.workdir import run_directory

SPREAD = "spread"  # the value of `distillation.init_layers` for layers at equal distances
_RECORD = "teacher"  # the entry of config.json with the teacher's architecture
_PLACES = ("tokens", "masked")


def distill(
    objective: Objective,
    config: RunConfig,
    head: str,
    *,
    tokenizer: Tokenizer | None = None,
    max_seq_length: int = 0,
    workdir: os.PathLike | str = "",
) -> Objective:
    """Returns the objective of a run with its teacher, of which only the shapes are read.

    Args:
        objective: what the student learns without a teacher.
        config: the configuration of the run; without a teacher, the objective is returned.
        head: the head of the teacher; a key of `convert.HEADS`.
        tokenizer: the tokenizer of the data, whose vocabulary the teacher must have.
        max_seq_length: the number of tokens of the longest row.
        workdir: the work directory. If its run has started, the teacher is that of the run and is not read.

    Raises:
        UserError: there is no teacher, it does not fit the student or the data, or a value is not valid.
    """
    part = config.distillation
    if not part.teacher:
        return objective
    if not hasattr(objective, "forward") or getattr(objective, "layers", None):
        what = f"objective={config.objective}" if isinstance(config, PretrainConfig) else "a frozen encoder"
        raise UserError(f"distillation.teacher={part.teacher}: {what} has no teacher; leave it empty")
    student = cast(Taught, objective)
    factors = parse_scales(part.losses)
    teacher_config = _architecture(part, tokenizer, workdir)
    teacher_config = teacher_config.replace(
        execution=dataclasses.replace(student.config.execution, remat="none")
    )
    family = families.of(teacher_config)
    if "logits" in factors and head not in family.heads:
        raise UserError(f"distillation.teacher={part.teacher}: a {family.name} has no head {head}")
    given = f"distillation.teacher={part.teacher}"
    if max_seq_length > teacher_config.max_seq_length:
        raise UserError(
            f"{given} has {teacher_config.max_seq_length} positions, and the rows have {max_seq_length} "
            "tokens; take shorter rows or another teacher"
        )
    if part.logits_at and part.logits_at not in _PLACES:
        raise UserError(f"distillation.logits_at={part.logits_at!r}: expected {' or '.join(_PLACES)}")
    theirs, mine = teacher_config.vocab_size, student.config.vocab_size
    if "logits" in factors and head == "masked_lm" and theirs != mine:
        raise UserError(
            f"{given} has {theirs} rows of word embeddings, and the student {mine}; set "
            f"--config.model.vocab_size={theirs}"
        )
    options = PairOptions(parse_layers(part.layers), part.relation_layer, part.relation_heads)
    pairs = [name for name in factors if name not in ("task", "logits")]
    check(pairs, Models(student.config, teacher_config, options))
    names: dict[str, Any] = {"config": teacher_config}
    if hasattr(student, "classifier"):
        names["classifier"] = family.classifiers.get(head, student.classifier)
    elif hasattr(student, "head"):
        names |= {"head": family.masked_lm, "next_sentence_head": False}
    teacher = dataclasses.replace(cast(Any, student), **names)
    return Distillation(
        student,
        teacher,
        factors,
        temperature=part.temperature,
        every_token=part.logits_at == "tokens",
        options=options,
    )


def _architecture(
    part: DistillationConfig, tokenizer: Tokenizer | None, workdir: os.PathLike | str
) -> EncoderConfig:
    """Returns the architecture of the teacher: of a run that has started, the recorded one."""
    if record := run_directory.read_started(workdir).get(_RECORD) if workdir else None:
        return from_dict({name: record[name] for name in ENCODER_FIELDS if name in record})
    config, theirs = convert.load_architecture(part.teacher)
    if tokenizer is not None:
        vocabularies.check("distillation.teacher", part.teacher, theirs, tokenizer)
    return config


def record(objective: Objective) -> dict[str, Any]:
    """Returns the entry of config.json that describes the teacher; empty if there is none."""
    if not isinstance(objective, Distillation):
        return {}
    teacher = objective.teacher.config
    return {_RECORD: {name: getattr(teacher, name) for name in ENCODER_FIELDS}}


def read_teacher(
    objective: Objective,
    config: RunConfig,
    head: str,
    workdir: os.PathLike | str,
    log: Callable[[str], None],
    labels: Collection[str] = (),
) -> Objective:
    """Returns the objective with the parameters of its teacher, unless the run has already saved them.

    A teacher of another path than that of the run is read, so that it is compared with the saved one.

    Args:
        objective: a result of `distill`.
        config: the configuration of the run.
        head: see `distill`.
        workdir: the work directory.
        log: called with a line that describes the teacher.
        labels: the labels of the data, which the teacher must have in this order; empty for none.

    Raises:
        UserError: the checkpoint lacks the head or parameters of it, or has other labels.
    """
    path = config.distillation.teacher
    if not isinstance(objective, Distillation) or _has_saved(workdir, path):
        return objective
    model = convert.load(path, log=log)
    if len(objective.teacher_shapes) > 1:  # it has a head
        if head == "masked_lm":
            model = surgery.change_head(model, head)
        if model.head != head:
            raise UserError(
                f"distillation.teacher={path} has the head {model.head}, and the task has {head}; give a "
                "checkpoint that was fine-tuned on the task"
            )
        if labels and model.labels and tuple(labels) != tuple(model.labels):
            raise UserError(
                f"distillation.teacher={path} has the labels {', '.join(model.labels)}, and the training "
                f"file {', '.join(labels)}; give a teacher of this task"
            )
    wanted = flatten(sharding.unbox(objective.teacher_shapes))
    if missing := [name for name in wanted if name not in model.params]:
        raise UserError(f"distillation.teacher={path} lacks {missing[0]}; expected a model with {head}")
    check_shapes(model.source, model.params, wanted)
    params = {name: model.params[name].astype(like.dtype) for name, like in wanted.items()}
    count = sum(x.size for x in params.values())
    log(
        f"teacher: {model.source}, {counted(objective.teacher.config.computed_layers, 'layer')}, "
        f"{count:,} parameters"
    )
    return dataclasses.replace(objective, teacher_params=nest(params))


def _has_saved(workdir: os.PathLike | str, path: str) -> bool:
    """Returns whether a run has saved a step, and thus its teacher, which had this path."""
    if not (workdir and checkpoint.parameter_names(os.path.join(workdir, "checkpoints"))):
        return False
    recorded = dict(config_fields.flatten(run_directory.read_started(workdir)["config"]))
    return recorded.get("distillation.teacher") == path


def adopt_widths(
    config: PretrainConfig, explicit: Collection[str], tokenizer: Tokenizer | None
) -> tuple[PretrainConfig, str]:
    """Returns the configuration of a student that starts with layers of its teacher, and a message about it.

    The student has the teacher's architecture, except for its family, its number of layers and its token
    types, the fields that a run sets, and those that the user set.

    Args:
        config: a configuration with `distillation.init_layers`.
        explicit: the fields of `config.model` that the user set.
        tokenizer: the tokenizer of the records.
    """
    part, before = config.distillation, config.model.to_dict()
    theirs, vocabulary = convert.load_architecture(part.teacher)
    if tokenizer is not None:
        vocabularies.check("distillation.teacher", part.teacher, vocabulary, tokenizer)
    own = ("model_type", "num_hidden_layers", "type_vocab_size", *RUN_FIELDS, *HEAD_FIELDS, *explicit)
    fields = theirs.to_dict() | {name: before[name] for name in own}
    layers = student_layers(part.init_layers, fields["num_hidden_layers"], theirs)
    fields["num_hidden_layers"] = len(layers)
    message = (
        f"the model starts with layers {', '.join(map(str, layers))} of the {theirs.num_hidden_layers} of "
        f"{part.teacher}, {fields['hidden_size']} wide"
    )
    return dataclasses.replace(config, model=ModelConfig(**fields)), message


def student_layers(text: str, count: int, teacher: EncoderConfig) -> tuple[int, ...]:
    """Returns the layers of the teacher that a student starts with.

    Args:
        text: the value of `distillation.init_layers`.
        count: the number of layers of the student.
        teacher: the architecture of the teacher.
    """
    many = teacher.num_hidden_layers
    if text != SPREAD:
        return parse_layers(text, "init_layers")
    if count > many:
        raise UserError(
            f"distillation.init_layers=spread: the student has {counted(count, 'layer')} and the teacher "
            f"{many}; set --config.model.num_hidden_layers={max(1, many // 2)}"
        )
    # 0, 2, 4, 7, 9 and 11 of 12 layers, as in DistilBERT.
    return tuple(round(i * (many - 1) / max(1, count - 1)) for i in range(count))


def load_student(
    config: PretrainConfig, abstract_params: Mapping[str, Any], log: Callable[[str], None]
) -> tuple[dict, checkpoint.Report]:
    """Returns the parameters of the teacher that a student starts with.

    The teacher's token types are dropped, and so are its pooler and other heads than the student's.

    Args:
        config: a configuration with `distillation.init_layers`.
        abstract_params: the parameters of the student, with shardings.
        log: called with one line for each notice.

    Raises:
        UserError: the teacher lacks a parameter of the student, or has another shape of it.
    """
    part = config.distillation
    model = convert.load(part.teacher, log=log)
    if "mlm" in abstract_params and "mlm" not in model.groups:
        model = surgery.change_head(model, "masked_lm")  # that of a generator
    layers = student_layers(part.init_layers, config.model.num_hidden_layers, model.config)
    model = surgery.select_layers(model, layers)
    wanted = flatten(abstract_params)
    if missing := [name for name in wanted if name not in model.params]:
        raise UserError(
            f"distillation.init_layers={part.init_layers}: the teacher has no {missing[0]}, which the "
            "student has; choose a student of the teacher's kind, or leave it empty"
        )
    check_shapes(model.source, model.params, wanted)
    report = checkpoint.Report.of(model.source, wanted, model.params)
    return nest({name: place(model.params[name], like) for name, like in wanted.items()}), report
