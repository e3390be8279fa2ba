"""A task as a run has it: which files, which labels, which model, how long."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optax

from bert_jax import convert, tasks, tokenization
from bert_jax.errors import UserError
from bert_jax.kernels import platform
from bert_jax.models import config as bert_config
from bert_jax.settings import config_fields
from bert_jax.tasks.readers import sources
from bert_jax.tasks.rows import batches


class Problem(abc.ABC):
    """One family of tasks, as a run has it: how its files are read, encoded, predicted and scored.

    Attributes:
      config: of the run, with every field of `bert_jax.tasks.default_config`.
      spec: the task's entry in the table.
      labels: names in the order of the logits; None where there are none.
      tokenizer: of the model.
      bert: the model.
    """

    def __init__(
        self,
        config: Any,
        spec: tasks.TaskSpec,
        labels: Sequence[str] | None,
        tokenizer: tokenization.Tokenizer,
        bert: bert_config.EncoderConfig,
    ):
        self.config, self.spec, self.tokenizer, self.bert = config, spec, tokenizer, bert
        self.labels = tuple(labels) if labels else None

    @classmethod
    @abc.abstractmethod
    def from_training_file(cls, config, spec, tokenizer, bert, path: str) -> tuple[Problem, Any]:
        """The problem with the labels that a training file has, and the examples of that file."""

    @property
    @abc.abstractmethod
    def task(self) -> Any:
        """Returns the model and the loss for `bert_jax.training.loop.fit` and `predictions.make_predict`. Its
        `head` is the group of parameters that is always new.
        """

    @property
    @abc.abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The metrics' names; the first selects the best checkpoint."""

    @abc.abstractmethod
    def read(self, path: str) -> Any:
        """The examples of a file, which must be labelled. They have a length, `path` and `warning()`."""

    @abc.abstractmethod
    def read_unlabelled(self, path: str, **options: Any) -> Any:
        """The examples of a file that may have labels; `options` are those of `bert-jax predict`."""

    @abc.abstractmethod
    def encode(self, examples: Any) -> batches.EncodedRows: ...

    @abc.abstractmethod
    def loss(self, data: batches.EncodedRows, outputs: np.ndarray) -> float:
        """The mean of what training minimises, of the outputs that `predictions.predict_all` returns."""

    @abc.abstractmethod
    def score(self, examples: Any, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, float]:
        """Every metric of a labelled file."""

    @abc.abstractmethod
    def write(self, path: str, examples: Any, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        """Writes predictions in the order of the file; `path` has a suffix of `formats`."""

    @abc.abstractmethod
    def records(self, examples: Any, data: batches.EncodedRows, outputs: np.ndarray) -> list[dict[str, Any]]:
        """The prediction of each example as an object of JSON, with its `id`."""

    group = 1  # rows of each example that are predicted together

    def is_degenerate(self, scores: dict[str, float], outputs: np.ndarray) -> bool:
        """Whether a model has learned nothing that tells examples apart."""
        return not scores[self.metrics[0]]

    @abc.abstractmethod
    def report(self, directory: Any, examples: Any, data: batches.EncodedRows, outputs: np.ndarray) -> None:
        """Writes what a person wants to see of the evaluation file into the work directory: the mistakes, the
        surest first, to errors-dev.tsv, and a picture to scores-dev.png.
        """

    packs = False  # whether several examples may share a row
    frozen = False  # whether only the head is trained
    exported_as = "sequence_classification"  # the head as `bert-jax convert` names it

    @property
    def problem_type(self) -> str:
        """What a sequence classification learns, as transformers calls it; "" for other heads."""
        return _PROBLEM_TYPES.get(self.spec.kind, "")

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """What trains the parameters, by the optimizer that the configuration describes."""
        return optimizer

    def precompute(
        self, data: dict[str, batches.EncodedRows], mesh: jax.sharding.Mesh, log: Callable[[str], None]
    ) -> dict[str, batches.EncodedRows]:
        """The rows of each split, with what is the same in every epoch."""
        return data

    def breakdown(self, examples: Any, data: batches.EncodedRows, outputs: np.ndarray) -> dict[str, dict]:
        """Scores by class; none where a task has no such table."""
        return {}

    formats: tuple[str, ...] = (".tsv", ".csv", ".jsonl")  # the first is the default

    def describe(self, examples: Any, data: batches.EncodedRows) -> str:
        """What is worth saying of a file's labels; one line, or nothing."""
        return ""

    def has_file(self, split: str) -> bool:
        """Whether `file(split)` is one that is there."""
        try:
            return bool(self.file(split))
        except UserError:
            return False

    def file(self, split: str) -> str:
        """The path of a split's file; "" when the run has none."""
        return split_file(self.config, self.spec, split)


_PROBLEM_TYPES = {
    "classification": "single_label_classification",
    "regression": "regression",
    "multilabel": "multi_label_classification",
}

# The module and the class of each kind of task; imported when it is asked for.
_FAMILIES = {
    "classification": ("bert_jax.tasks.text.task", "TextProblem"),
    "regression": ("bert_jax.tasks.text.task", "TextProblem"),
    "multilabel": ("bert_jax.tasks.text.multilabel", "MultiLabelProblem"),
    "multiple_choice": ("bert_jax.tasks.multiple_choice.task", "MultipleChoiceProblem"),
    "question_answering": ("bert_jax.tasks.question_answering.task", "QuestionAnswering"),
    "tagging": ("bert_jax.tasks.tagging.task", "TaggingProblem"),
}


def family(kind: str) -> type[Problem]:
    """The class of a `TaskSpec.kind`."""
    module, name = _FAMILIES[kind]
    return getattr(importlib.import_module(module), name)


def from_training_file(config: Any) -> tuple[Problem, Any]:
    """The task that a configuration describes, with the examples of its training file.

    Raises:
      UserError: a missing file or column, one class only, another vocabulary than the checkpoint's, ...
    """
    spec = tasks.get(config.task)
    path = split_file(config, spec, "train")
    if not path:
        where = "--config.data_dir=DIR" if spec.file_name else "--config.data.train=FILE"
        raise UserError(f"what should be trained on? give {where}")
    bert, tokenizer = resolve_model(config)
    mistakes = []
    try:
        found = family(spec.kind).from_training_file(config, spec, tokenizer, bert, path)
    except UserError as error:
        mistakes.append(str(error))
    # Told with the mistakes of the training file, because each try takes seconds.
    if missing := _missing_evaluation_file(config, spec):
        mistakes.append(missing)
    if mistakes:
        raise UserError("; ".join(mistakes))
    return found


def _missing_evaluation_file(config: Any, spec: tasks.TaskSpec) -> str:
    """Returns what is wrong with the path of the evaluation file; "" if it is there, or the run has none."""
    try:
        path = split_file(config, spec, "dev")
    except UserError as error:
        return str(error)
    if path and not sources.source_of(path).exists(path):
        return f"{path}: no such file"
    return ""


def split_file(config: Any, spec: tasks.TaskSpec, split: str) -> str:
    """The path of a split's file; "" when the configuration has none."""
    given = {"train": config.data.train, "dev": config.data.eval}.get(split, "")
    if not given and spec.file_name and config.data_dir:
        return spec.file(config.data_dir, split)
    return given


def resolve_model(config: Any) -> tuple[bert_config.EncoderConfig, tokenization.Tokenizer]:
    """The architecture and the vocabulary: the checkpoint's where there is one, else the configuration's.

    Dropout and how the model is computed (dtype, attention, ...) always are the configuration's. A dtype of
    "auto" is resolved for the device of this process.
    """
    fields = config.model.to_dict()
    if config.init_from:
        default = tasks.default_config().model
        explicit = [name for name, value in fields.items() if value != default[name]]
        fields, tokenizer = convert.adopt_architecture(config.init_from, fields, explicit)
        if config.vocab:
            given = tokenization.load(config.vocab)
            if given.tokens != tokenizer.tokens:
                raise UserError(
                    f"vocab={config.vocab} is not the vocabulary of the checkpoint {config.init_from} "
                    f"({tokenizer.path}): its ids would mean other words; leave config.vocab empty"
                )
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
    bert = bert_config.from_dict(fields).resolve(platform.target())
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
    """Fills in steps, warm-up and evaluation interval from the epochs and the groups of rows; returns the
    steps.
    """
    for name in ("epochs", "warmup_fraction"):
        config_fields.check(name, config[name])
    per_epoch = batches.steps_per_epoch(examples, config.batch_size)
    config.steps = max(1, round(per_epoch * config.epochs))
    config_fields.check("steps", config.steps)
    if not config.optimizer.warmup_steps:
        config.optimizer.warmup_steps = int(config.steps * config.warmup_fraction)
    if not config.eval.every:
        config.eval.every = per_epoch
    return config.steps
