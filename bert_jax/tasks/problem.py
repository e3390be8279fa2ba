"""A task as a run has it: which files and columns, which labels, which model, how long."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_jax import config as bert_config
from bert_jax import convert, tasks, tokenization
from bert_jax.errors import UserError
from bert_jax.tasks import batches, metrics
from bert_jax.tasks.classification import ClassificationTask
from bert_jax.tasks.labels import LabelSet, parse_number
from bert_jax.tasks.reading import Columns, Examples, read_examples


@dataclasses.dataclass(frozen=True)
class Problem:
    """A task as a run has it: how its files are read, encoded and scored.

    Attributes:
      config: of the run; see `bert_jax.tasks.default_config`.
      spec: the task's entry in the table.
      labels: in the order of the logits; None for a regression.
      tokenizer: of the model.
      bert: the model.
    """

    config: Any
    spec: tasks.TaskSpec
    labels: LabelSet | None
    tokenizer: tokenization.Tokenizer
    bert: bert_config.BertConfig

    @property
    def task(self) -> ClassificationTask:
        return ClassificationTask(self.bert, len(self.labels) if self.labels else 1, self.spec.kind)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        return self.labels.names if self.labels else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names; the first selects the best checkpoint."""
        given = tuple(name.strip() for name in self.config.metrics.split(",") if name.strip())
        count = len(self.labels) if self.labels else 1
        return metrics.choose(given or self.spec.metrics, self.spec.kind, count)

    @property
    def columns(self) -> Columns:
        return columns_of(self.config, self.spec)

    def file(self, split: str) -> str:
        """The path of a split's file; "" when the run has none."""
        return split_file(self.config, self.spec, split)

    def read(self, path: str) -> Examples:
        """The examples of a file, which must be labelled."""
        return read_labelled(self.config, self.spec, path, self.labels.index if self.labels else parse_number)

    def encode(self, examples: Examples) -> batches.EncodedExamples:
        return batches.encode(examples, self.tokenizer, self.config.max_length, self.spec.kind)

    def loss(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """The mean of what training minimises, of float32 [N, C] outputs against [N] targets."""
        if self.labels is None:
            return metrics.mean_squared_error(outputs[:, 0], targets)
        chosen = np.take_along_axis(outputs, targets[:, None], axis=1)
        return float(-np.mean(np.log(np.maximum(chosen, np.finfo(np.float32).tiny))))

    def score(self, outputs: np.ndarray, targets: np.ndarray) -> dict[str, float]:
        """Every metric of float32 [N, C] outputs against [N] targets."""
        values = outputs[:, 0] if self.labels is None else np.argmax(outputs, axis=-1)
        return metrics.score(self.metrics, self.spec.kind, values, targets)


def from_training_file(config: Any) -> tuple[Problem, Examples]:
    """The task that a configuration describes, with the examples of its training file.

    Raises:
      UserError: a missing file or column, one class only, another vocabulary than the checkpoint's, ...
    """
    spec = tasks.get(config.task)
    path = split_file(config, spec, "train")
    if not path:
        where = "--config.data_dir=DIR" if spec.folder else "--config.data.train=FILE"
        raise UserError(f"what should be trained on? give {where}")
    bert, tokenizer = resolve_model(config)
    if spec.kind == "regression":
        examples, labels = read_labelled(config, spec, path, parse_number), None
    else:
        known = LabelSet(spec.labels).checked if spec.labels else str
        examples = read_labelled(config, spec, path, known)
        inferred = LabelSet.infer(examples.labels, path)
        labels = LabelSet(spec.labels) if spec.labels else inferred
        examples.labels = [labels.index(name) for name in examples.labels]
    return Problem(config, spec, labels, tokenizer, bert), examples


def columns_of(config: Any, spec: tasks.TaskSpec) -> Columns:
    """The columns that a configuration names, else the task's."""
    data = config.data
    if spec.columns is not None and not (data.text_a or data.text_b or data.label):
        return spec.columns
    return Columns(data.text_a, data.text_b, data.label, data.id, data.header)


def split_file(config: Any, spec: tasks.TaskSpec, split: str) -> str:
    """The path of a split's file; "" when the configuration has none."""
    given = {"train": config.data.train, "dev": config.data.eval}.get(split, "")
    if not given and spec.folder and config.data_dir:
        return spec.file(config.data_dir, split)
    return given


def read_labelled(
    config: Any, spec: tasks.TaskSpec, path: str, parse_label: Callable[[str], Any]
) -> Examples:
    """The examples of a file, with their labels."""
    columns = columns_of(config, spec)
    if not columns.label:
        raise UserError("which column holds the label? give --config.data.label=COLUMN")
    data = config.data
    return read_examples(
        path, columns, file_format=data.format, quoting=data.quoting, parse_label=parse_label
    )


def resolve_model(config: Any) -> tuple[bert_config.BertConfig, tokenization.Tokenizer]:
    """The architecture and the vocabulary: the checkpoint's where there is one, else the configuration's.

    Dropout and how the model is computed (dtype, attention, ...) always are the configuration's.
    """
    fields = config.model.to_dict()
    if config.init_from:
        theirs, tokenizer = convert.load_architecture(config.init_from)
        if config.vocab:
            given = tokenization.load(config.vocab)
            if given.tokens != tokenizer.tokens:
                raise UserError(
                    f"vocab={config.vocab} is not the vocabulary of the checkpoint {config.init_from} "
                    f"({tokenizer.path}): its ids would mean other words; leave config.vocab empty"
                )
        kept = (*bert_config.EXECUTION_FIELDS, "hidden_dropout_prob", "attention_probs_dropout_prob")
        fields = theirs.to_dict() | {name: fields[name] for name in kept}
    elif config.from_scratch:
        raise UserError(
            "from_scratch takes the architecture and vocabulary of a checkpoint; give --config.init_from"
        )
    elif config.vocab:
        tokenizer = tokenization.load(config.vocab)
    else:
        raise UserError(
            "what should be fine-tuned? give --config.init_from=CHECKPOINT (or, to train from scratch, "
            "--config.vocab=FILE)"
        )
    fields["vocab_size"] = fields["vocab_size"] or tokenizer.vocab_size
    bert = bert_config.from_dict(fields)
    if tokenizer.vocab_size > bert.vocab_size:
        raise UserError(
            f"{tokenizer.path} has {tokenizer.vocab_size} tokens and the model {bert.vocab_size} embeddings: "
            "it is not the vocabulary that the model was trained with"
        )
    if not 4 <= config.max_length <= bert.max_position_embeddings:
        raise UserError(
            f"max_length={config.max_length}: expected 4 to {bert.max_position_embeddings}, the number of "
            "positions that the model has"
        )
    return bert, tokenizer


def resolve_schedule(config: Any, examples: int) -> int:
    """Fills in steps, warm-up and evaluation interval from the epochs and the examples; returns the steps."""
    if config.epochs <= 0:
        raise UserError(f"epochs={config.epochs}: expected more than 0")
    if not 0 <= config.warmup_fraction < 1:
        raise UserError(f"warmup_fraction={config.warmup_fraction}: expected 0 to 1")
    per_epoch = batches.steps_per_epoch(examples, config.batch_size)
    config.steps = max(1, round(per_epoch * config.epochs))
    if not config.optimizer.warmup_steps:
        config.optimizer.warmup_steps = int(config.steps * config.warmup_fraction)
    if not config.eval.every:
        config.eval.every = per_epoch
    return config.steps
