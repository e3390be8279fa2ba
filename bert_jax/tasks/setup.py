"""Resolves the files, model, vocabulary, schedule and training objective of a fine-tuning run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import ml_collections

from bert_jax import convert, hub, tokenization
from bert_jax.convert import families
from bert_jax.errors import UserError
from bert_jax.kernels import platform
from bert_jax.models import config as model_config
from bert_jax.models.heads import structures
from bert_jax.objectives.base import Objective
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.settings.run_config import ModelConfig
from bert_jax.tasks import fields, registry
from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import batches
from bert_jax.training.adapters import adapt
from bert_jax.training.optimizers import freeze


def from_training_file(
    config: FinetuneConfig, explicit: Collection[str] = (), log: Callable[[str], None] = lambda line: None
) -> tuple[FinetuneTask, Any]:
    """Returns the task of a configuration and the examples of its training file; see `resolve_model`."""
    spec = registry.get(config.task)
    path = split_file(config, spec, "train")
    if not path:
        raise UserError("expected --config.data.train=FILE, or --config.data_dir with the files of a task")
    encoder, tokenizer = resolve_model(config, explicit, log)
    encoder = spec.task.adopt_model(encoder, tokenizer, config, explicit, log)
    of_task = fields.of_task(config)
    if of_task.max_seq_length > encoder.max_seq_length:
        limit = f"{encoder.max_seq_length}, the positions of the model"
        raise UserError(f"max_seq_length={of_task.max_seq_length}: expected at most {limit}")
    task = spec.task(of_task, spec, None, tokenizer, encoder)
    user = f"the task {spec.name} with a model of the family {families.of(encoder).name}"
    structures.check_fields(config.model.to_dict(), task.classifier.fields, user)
    if config.batch_size < task.least_batch_size:
        raise UserError("batch_size=1: expected 2 or more, because the loss compares the texts of a batch")
    return task, task.augmented(task.read_training(path).first(config.train_rows))


def training_objective(config: FinetuneConfig, task: FinetuneTask, learned: Objective) -> Objective:
    """Returns the training objective: `learned`, with parameters frozen by task, optimizer and adapter."""
    frozen = freeze(learned, task.freeze, config.optimizer.freeze)
    return adapt(frozen, config.adapter, task.objective().new_groups)


def with_named_data(
    config: ml_collections.ConfigDict, log: Callable[[str], None]
) -> ml_collections.ConfigDict:
    """Replaces the short name of a data set in a configuration by its source and its columns.

    A configuration without data gets the data set of its task, if there is one: finetune/glue:mrpc trains on
    MRPC from the hub. Other data sets on the hub are evaluated on their validation split, if there is one.
    """
    name = str(config.data.train)
    spec = registry.get(str(config.task))
    if not name and not config.get("data_dir"):
        tasks = {each.task: name for name, each in hub.DATA_SETS.items() if each.task != "classification"}
        name = tasks.get(spec.name, "")
    found = hub.data_set(name)
    is_on_hub = name.startswith(hub.DATA) and not (config.data.eval or config.get("data_dir"))
    if found is None and not is_on_hub:
        return config
    config = config.copy_and_resolve_references()
    if found is None:
        with contextlib.suppress(hub.NoSplit):
            hub.data_files(name, "dev")
            config.data.eval = name
            log(f"evaluation: the validation split of {name}")
        return config
    if spec.hub_columns:
        config.data_dir, config.data.train = found.source, ""
    else:
        config.data.train, config.data.eval = found.source, config.data.eval or found.source
        if not any(config.data[field] for field in ("text_a", "label")):
            for field, column in found.columns.items():
                config.data[field] = config.data[field] or column
    log(f"data: {found.source} ({found.rows} rows; license: {found.license or 'see its card'})")
    if found.splits.get("dev") == "test":
        log("it has no validation split: the best checkpoint is chosen on its test split")
    return config


def split_file(config: FinetuneConfig, spec: TaskSpec, split: str) -> str:
    """Returns the path of a split's file; "" if the configuration has none."""
    given = {"train": config.data.train, "dev": config.data.eval}.get(split, "")
    if not given and spec.file_name and config.data_dir:
        return spec.file(config.data_dir, split)
    if split not in ("train", "dev") and config.data.train.startswith(hub.DATA):
        given = config.data.train
    return ",".join(hub.data_files(given, split)) if given.startswith(hub.DATA) else given


def resolve_model(
    config: FinetuneConfig, explicit: Collection[str] = (), log: Callable[[str], None] = lambda line: None
) -> tuple[model_config.EncoderConfig, tokenization.Tokenizer]:
    """Returns the model configuration and the tokenizer.

    The architecture and the vocabulary come from the checkpoint if there is one, and otherwise from the
    configuration. Dropout and computation options (dtype, attention, ...) always come from the configuration.
    The dtype "auto" is resolved for the device of this process. `explicit` are the fields of `config.model`
    that the user set, even to their defaults. `log` is called with a line about settings taken from
    `init_from`.
    """
    values = config.model.to_dict()
    if config.init_from:
        default = ModelConfig().to_dict()
        explicit = [name for name, value in values.items() if name in explicit or value != default[name]]
        values, tokenizer = convert.adopt_architecture(config.init_from, values, explicit)
        named = (*model_config.RUN_FIELDS, *model_config.SHAPE_FIELDS)
        kept = ", ".join(f"{name} {values[name]}" for name in explicit if name not in named)
        log(convert.describe_architecture(config.init_from, values) + (kept and f"; the config sets {kept}"))
        if config.vocab and tokenization.load(config.vocab).tokens != tokenizer.tokens:
            raise UserError(f"vocab={config.vocab} is not the vocabulary of the checkpoint, {tokenizer.path}")
    elif config.vocab and not config.from_scratch:
        # The size of the vocabulary is not known yet, and the family does not depend on it.
        family = model_config.from_dict(values | {"vocab_size": values["vocab_size"] or 1})
        families.check_known(family)
        tokenizer = families.load_tokenizer(config.vocab, family)
    else:
        raise UserError("expected --model=MODEL to fine-tune, or --config.vocab=FILE to train from scratch")
    values |= config.adapter.model_fields(values["hidden_size"])
    values["vocab_size"] = values["vocab_size"] or tokenizer.vocab_size
    encoder = model_config.from_dict(values).resolve(platform.target())
    if tokenizer.vocab_size > encoder.vocab_size:
        expected = f"expected at most {encoder.vocab_size}, the vocab_size of the model"
        raise UserError(f"{tokenizer.path} has {tokenizer.vocab_size} tokens; {expected}")
    return encoder, tokenizer


def resolve_schedule(config: FinetuneConfig, examples: int) -> FinetuneConfig:
    """Returns the configuration with the number of steps, the warm-up steps and the evaluation interval.

    `examples` is the number of groups of rows in an epoch. Values that are already set are kept.
    """
    per_epoch = batches.steps_per_epoch(examples, config.batch_size)
    steps = max(1, round(per_epoch * config.epochs))
    warmup_steps = config.optimizer.warmup_steps or int(steps * config.warmup_fraction)
    return dataclasses.replace(
        config,
        steps=steps,
        optimizer=dataclasses.replace(config.optimizer, warmup_steps=warmup_steps),
        eval=dataclasses.replace(config.eval, every=config.eval.every or per_epoch),
    )
