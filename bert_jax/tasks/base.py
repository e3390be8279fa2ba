"""The base class of fine-tuning tasks.

A task reads files, encodes examples as rows of tokens, decodes the model's outputs into predictions, and
scores the predictions.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax import tokenization
from bert_jax.convert import families
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.io.wording import alternatives
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import ClassificationHead
from bert_jax.objectives.rows import RowObjective
from bert_jax.settings.config_fields import option
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import metrics
from bert_jax.tasks.lines import FIELDS, LineReader
from bert_jax.tasks.predictions import TABLE_FORMATS, Predictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows.batches import EncodedRows

LINEAR, BILSTM = HEADS = ("linear", "bilstm")  # the values of `head`


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The `config.data.*` fields that every task uses."""

    text_a: str = option("", "the column of the text, by name or by number from 0")
    label: str = option("", "the column of the label")
    id: str = option("", "the column of the id; without one, examples are numbered from 0")
    format: str = option("auto", "by suffix; `tsv`, `csv`, `jsonl`; of questions `json`, of tags `conll`")


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The fields that every task uses."""

    max_seq_length: int = option(
        128, "tokens with [CLS] and [SEP]; longer texts are cut, or have windows", minimum=4, maximum=2**24
    )
    metrics: str = option(
        "",
        "names with commas between; the first one selects the best checkpoint. Of labels `accuracy`, `f1` "
        "(of two), `f1_macro`, `matthews`; XNLI also `average`, `accuracy_LANGUAGE`; several labels "
        "`f1_micro`, `f1_macro`, `exact_match`; numbers `pearson`, `spearman`, `mean_squared_error`; "
        "choices `accuracy`; tags `f1`, `precision`, `recall`, `accuracy`, or `accuracy`, `f1_macro`; "
        "questions `f1`, `exact_match`, or with `v2` `exact`; pairs of texts `mrr`, `recall1`, `recall10`, "
        "`ndcg10`, or with similarities `spearman`, `pearson`",
    )
    head: str = option(
        LINEAR, "on the encoder; `bilstm`: with two layers of a BiLSTM ([baselines.md](baselines.md))"
    )
    head_size: int = option(768, "of each direction of the BiLSTM", minimum=1, maximum=2**20)
    data: DataConfig = DataConfig()


@dataclasses.dataclass(frozen=True)
class WindowsConfig(TaskConfig):
    """The fields of tasks that split a long text into windows."""

    doc_stride: int = option(
        0,
        "stride, in tokens, between windows over a long text (for questions: over the context); 0: the text "
        "is truncated",
        maximum=2**24,
    )


class FinetuneTask(abc.ABC):
    """Base class of fine-tuning tasks.

    A package of `bert_jax.tasks` defines one or more subclasses. Its `TASKS` has a `TaskSpec` for each name
    under which they can be chosen.

    Attributes:
        Config: a frozen dataclass with exactly the configuration fields that this class uses.
        Lines: the reader of examples from a stream.
        title: the name of the class in messages.
        formats: the suffixes that a file of predictions may have; the first one is the default.
        export_head: the name of the head in `bert-jax convert`.
        next_command: what to do with a trained model, with {workdir} for the work directory.
        problem_type: the `problem_type` of a sequence classification in transformers; "" for other heads.
        config: the values of the fields of `Config`.
        spec: the task's entry in the registry.
        labels: the label names in the order of the logits; empty if the task has none, or if they are not
            known before `read_training`.
        training_columns: the number of columns of the training file, if the task compares files to predict
            with it; otherwise 0.
        tokenizer: the tokenizer of the model.
        model_config: the configuration of the encoder.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    Lines: ClassVar[type[LineReader]]
    title: ClassVar[str]
    formats: ClassVar[tuple[str, ...]] = TABLE_FORMATS
    export_head: ClassVar[str] = "sequence_classification"
    next_command: ClassVar[str] = "predict --workdir={workdir} --input=FILE --output=FILE"
    problem_type: ClassVar[str] = ""

    def __init__(
        self,
        config: TaskConfig,
        spec: TaskSpec,
        labels: Sequence[str] | None,
        tokenizer: tokenization.Tokenizer,
        model_config: EncoderConfig,
    ):
        self.config, self.spec, self.tokenizer, self.model_config = config, spec, tokenizer, model_config
        self.labels = tuple(labels or ())
        self.training_columns = 0
        if config.head not in HEADS:
            raise UserError(f"head={config.head}: expected {alternatives(HEADS)}")
        self.set_up()

    def set_up(self) -> None:  # noqa: B027 (most tasks have nothing to do)
        """Derives the attributes of a subclass, and raises UserError if the configuration does not fit."""

    @classmethod
    def adopt_model(
        cls,
        model_config: EncoderConfig,
        tokenizer: tokenization.Tokenizer,
        config: FinetuneConfig,
        explicit: Collection[str],
        log: Callable[[str], None],
    ) -> EncoderConfig:
        """Returns the configuration of the encoder with the values that a new run of the task has.

        Args:
            model_config: the configuration of the encoder, as `init_from` and the run have it.
            tokenizer: the tokenizer of the model.
            config: the configuration of the run.
            explicit: the fields of `config.model` that the user set.
            log: called with lines about what is taken from `init_from`.
        """
        return model_config

    @classmethod
    def file(cls, config: Any, spec: TaskSpec, data_dir: str, split: str) -> str:
        """Returns the path of a split's file in `data_dir`; see `TaskSpec.file`."""
        return spec.file(data_dir, split)

    @abc.abstractmethod
    def read(self, path: str) -> Any:
        """Returns the examples of a file, each with its label: a `FileReport` with a length."""

    def read_training(self, path: str) -> Any:
        """Returns the examples of the training file, and sets `labels` if they come from that file."""
        return self.read(path)

    def augmented(self, examples: Any) -> Any:
        """Returns the examples that are trained on, made from those of the training file that are used."""
        return examples

    @abc.abstractmethod
    def read_unlabeled(self, path: str, *, test: bool = False, format: str = "auto", **columns: Any) -> Any:
        """Returns the examples of a file, whose labels, if it has any, are not read.

        Args:
            path: the path of the file.
            test: whether the file has the columns of the benchmark's test set.
            format: the format of the file; "auto" for `config.data.format`.
            **columns: the columns that differ from those of the training file.
        """

    @abc.abstractmethod
    def encode(self, examples: Any) -> EncodedRows:
        """Returns the rows of the examples, with targets if they have labels."""

    @abc.abstractmethod
    def objective(self) -> RowObjective:
        """Returns the training objective."""

    @abc.abstractmethod
    def decode(self, examples: Any, rows: Any, outputs: np.ndarray) -> Predictions:
        """Returns the predictions, which scores, files, reports and streams are made from.

        Args:
            examples: the examples of a file or a stream.
            rows: the encoded examples, as `encode` returns them.
            outputs: the outputs of the objective's `predict`, as `outputs.predict_all` returns them.
        """

    @abc.abstractmethod
    def score(self, predictions: Any) -> dict[str, float]:
        """Returns the value of each metric for predictions of labeled examples, in the order of `metrics`."""

    @property
    @abc.abstractmethod
    def known_metrics(self) -> Collection[str]:
        """Returns the names of all metrics that can be configured."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns the names of the metrics that are reported; the first one selects the best checkpoint.

        Raises:
            UserError: the configuration names one that does not exist.
        """
        names = self.config.metrics or ",".join(self.spec.metrics)
        return metrics.parse(names, self.known_metrics, self.spec.name)

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> float | None:
        """Returns the mean loss of the outputs, in which every target has the same weight, or None."""
        return self.objective().evaluation_loss(*rows.compared(outputs))

    @property
    def packs(self) -> bool:
        """Returns whether rows may hold several examples; see `bert_jax.tasks.rows.packing`."""
        return getattr(self.config, "pack", False)

    @property
    def classifier(self) -> ClassificationHead:
        """Returns the structure of the head: that of the model's family, or the same with a BiLSTM."""
        head = families.of(self.model_config).classifiers[self.export_head]
        return head.with_lstm(self.config.head_size) if self.config.head == BILSTM else head

    def describe(self, examples: Any, rows: Any) -> str:
        """Returns a one-line summary of a file's labels, or an empty string."""
        return ""

    @property
    def stream_warning(self) -> str:
        """Returns a message if the examples of a stream lack something that a file has, or ""."""
        return ""

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        """Returns a reader for the lines of a stream.

        Args:
            file_format: one of `lines.FORMATS`.
            **columns: the names of `text_a`, `text_b` and `id`, where they differ from the training file's.
        """
        return self.Lines(file_format, self.line_names() | columns)

    def line_names(self) -> dict[str, str]:
        """Returns the names of `text_a`, `text_b` and `id` in the JSON objects of a stream."""
        data = self.config.data
        return {field: getattr(data, field, "") or self.Lines.own_names[field] for field in FIELDS}

    def files_beside(self, path: str) -> Sequence[str]:
        """Returns the further files that predictions write when they are written to `path`."""
        return ()

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        """Yields (field, reason) for each field of this class that must keep its default in this run."""
        if config.head != BILSTM:
            yield "head_size", f"it is only used with head={BILSTM}"

    def batch_size_error(self, batch_size: int) -> str:
        """Returns an error message if global batches of this many groups of rows train nothing, or ""."""
        return ""

    @property
    def scores_pairs(self) -> bool:
        """Returns whether the outputs of a pair of texts are one score, or probabilities of two labels."""
        return self.export_head == "sequence_classification" and len(self.labels) <= 2

    @property
    def sentence(self) -> SentenceVectors | None:
        """Returns how the model turns a text into one vector; None if it is not trained for that."""
        return None

    @property
    def freeze(self) -> str:
        """Returns a regular expression for the names of the parameters that the task keeps as they are."""
        return ""

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: FinetuneConfig, log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows of each split, with everything added that stays the same in every epoch.

        Args:
            rows: the rows by split.
            mesh: the device mesh of the run.
            run: the run's configuration.
            log: called with each line to be logged.
        """
        return rows
