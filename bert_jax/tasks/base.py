"""The base class of fine-tuning tasks.

A task reads files, encodes examples as rows of tokens, decodes the model's outputs into predictions, and
scores the predictions.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from bert_jax import tokenization
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.rows import RowObjective
from bert_jax.tasks import metrics
from bert_jax.tasks.config import TaskConfig
from bert_jax.tasks.predictions import TABLE_FORMATS, Predictions
from bert_jax.tasks.readers.lines import LineReader
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.spec import TaskSpec


class FinetuneTask(abc.ABC):
    """Base class of fine-tuning tasks.

    A package of `bert_jax.tasks` defines one or more subclasses. Its `TASKS` has a `TaskSpec` for each name
    under which they can be chosen.

    Attributes:
        Config: a frozen dataclass with exactly the configuration fields that this class uses.
        title: the name of the class in messages.
        formats: the suffixes that a file of predictions may have; the first one is the default.
        export_head: the name of the head in `bert-jax convert`.
        suffix_tells_format: whether the format of a file is known only from its suffix, so that a file
            without a suffix may have any format.
        problem_type: the `problem_type` of a sequence classification in transformers; "" for other heads.
        config: the values of the fields of `Config`.
        spec: the task's entry in the registry.
        labels: the label names in the order of the logits; None if the task has no labels.
        tokenizer: the tokenizer of the model.
        model_config: the configuration of the encoder.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    title: ClassVar[str]
    formats: ClassVar[tuple[str, ...]] = TABLE_FORMATS
    export_head: ClassVar[str] = "sequence_classification"
    problem_type: ClassVar[str] = ""
    suffix_tells_format: ClassVar[bool] = True

    def __init__(
        self,
        config: TaskConfig,
        spec: TaskSpec,
        labels: Sequence[str] | None,
        tokenizer: tokenization.Tokenizer,
        model_config: EncoderConfig,
    ):
        self.config, self.spec, self.tokenizer, self.model_config = config, spec, tokenizer, model_config
        self.labels = tuple(labels) if labels else None

    @classmethod
    @abc.abstractmethod
    def from_training_file(
        cls,
        config: TaskConfig,
        spec: TaskSpec,
        tokenizer: tokenization.Tokenizer,
        model_config: EncoderConfig,
        path: str,
    ) -> tuple[Self, Any]:
        """Returns the task, with the labels found in a training file, and the examples of that file."""

    @abc.abstractmethod
    def read(self, path: str, labelled: bool = True, **options: Any) -> Any:
        """Returns the examples of a file: a `FileReport` with a length.

        Args:
            path: the path of the file.
            labelled: whether every example must have a label. Otherwise no labels are read.
            **options: options of `bert-jax predict` for files without labels: `test`, whether the file has
                the columns of the benchmark's test set; `format`; and the columns that differ from those of
                the training file.
        """

    @abc.abstractmethod
    def encode(self, examples: Any) -> EncodedRows:
        """Returns the rows of the examples, with targets if they have labels."""

    @abc.abstractmethod
    def objective(self) -> RowObjective:
        """Returns the training objective. Its `head` names the parameter group that is always initialized."""

    @abc.abstractmethod
    def decode(self, examples: Any, rows: EncodedRows, outputs: np.ndarray) -> Predictions:
        """Returns the predictions, which scores, files, reports and streams are made from.

        Args:
            examples: the examples of a file or a stream.
            rows: the encoded examples.
            outputs: the outputs of the objective's `predict`, as `outputs.predict_all` returns them.
        """

    @abc.abstractmethod
    def score(self, predictions: Any) -> dict[str, float]:
        """Returns the value of each metric for predictions of labeled examples, in the order of `metrics`."""

    @abc.abstractmethod
    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        """Returns a reader for the lines of a stream.

        Args:
            file_format: one of `lines.FORMATS`.
            **columns: the names of `text_a`, `text_b` and `id`, where they differ from the training file's.
        """

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> float:
        """Returns the mean loss of the outputs, in which every example has the same weight."""
        return self.objective().evaluation_loss(outputs, self.targets(rows))

    @abc.abstractmethod
    def targets(self, rows: EncodedRows) -> Any:
        """Returns the targets of all outputs, in the form that the objective's `criterion` expects."""

    @abc.abstractmethod
    def known_metrics(self) -> tuple[Collection[str], str]:
        """Returns the names of all available metrics, and a description of what they score, for messages."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns the names of the metrics that are reported; the first one selects the best checkpoint.

        Raises:
            UserError: the configuration names one that does not exist.
        """
        known, what = self.known_metrics()
        return metrics.parse(self.config.metrics or ",".join(self.spec.metrics), known, what)

    def describe(self, examples: Any, rows: EncodedRows) -> str:
        """Returns a one-line summary of a file's labels, or an empty string."""
        return ""

    @property
    def rows_per_example(self) -> int:
        """Returns the number of consecutive rows that form one question."""
        return 1

    @property
    def packs(self) -> bool:
        """Returns whether several examples may be packed into one row in training."""
        return False

    @property
    def freeze(self) -> str:
        """Returns a regular expression for the names of the parameters that the task keeps as they are."""
        return ""

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: Mapping[str, Any], log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows of each split, with everything added that stays the same in every epoch.

        Args:
            rows: the rows by split.
            mesh: the device mesh of the run.
            run: the run's configuration.
            log: called with each line to be logged.
        """
        return rows

    def set_null_threshold(self, threshold: float) -> None:
        """Sets the null threshold of question answering.

        No answer is predicted where its score exceeds that of the best answer by more than the threshold.

        Raises:
            UserError: every question has an answer, or the task has no questions.
        """
        raise UserError(
            f"--null_score_diff_threshold={threshold:g}: is for questions that may have no answer, as in "
            f"SQuAD 2.0; the run's task is {self.spec.name}"
        )

    @classmethod
    def detect_format(cls, path: str, file_format: str) -> str:
        """Returns the format of a file: `file_format`, or the one that the name implies if that is "auto".

        Args:
            path: the path of the file.
            file_format: the value of `config.data.format`.

        Raises:
            UserError: the task cannot read the format, or the name does not determine it.
        """
        raise NotImplementedError

    @classmethod
    def check_values(cls, config: Any, spec: TaskSpec) -> None:
        """Raises UserError for values of the run's configuration that contradict the task."""
        return

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec, formats: set[str]) -> Iterator[tuple[str, str]]:
        """Yields (field, reason) for each field of this class that has no effect in the configured run.

        Args:
            config: the configuration of the run.
            spec: the registry entry of its task.
            formats: the formats of the run's files; "" stands for one that the name does not determine.
        """
        yield from ()
