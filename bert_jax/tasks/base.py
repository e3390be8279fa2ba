"""What a fine-tuning task is: from a file to rows of tokens, and from the model's outputs to predictions and
scores.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
import optax

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
    """One class of fine-tuning tasks.

    A package of `bert_jax.tasks` defines one or more of them and registers each name under which they are
    known as a `TaskSpec` in its `TASKS`.

    Attributes:
        Config: a frozen dataclass with the fields of the configuration that this class uses, and no others.
        title: what messages call the class.
        formats: the suffixes of a file of predictions; the first one is the default.
        export_head: the head as `bert-jax convert` names it.
        suffix_tells_format: whether a file without a suffix may have any format.
        problem_type: what a sequence classification learns, as transformers calls it; "" for other heads.
        config: the values of the fields.
        spec: the task's entry in the registry.
        labels: names in the order of the logits; None where there are none.
        tokenizer: of the model.
        model_config: of the encoder.
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
        """Returns the task with the labels of a training file, and the examples of that file."""

    @abc.abstractmethod
    def read(self, path: str, labelled: bool = True, **options: Any) -> Any:
        """Returns the examples of a file: a `FileReport` with a length.

        Args:
            path: of the file.
            labelled: whether every example must have a label. Otherwise no labels are read.
            **options: of `bert-jax predict`, for files without labels: `test`, whether the file has the
            columns of
                the benchmark's test set; `format`; and the columns that differ from those of the training
                file.
        """

    @abc.abstractmethod
    def encode(self, examples: Any) -> EncodedRows:
        """Returns the rows of the examples, with targets if they have labels."""

    @abc.abstractmethod
    def objective(self) -> RowObjective:
        """Returns what is learned. Its `head` is the group of parameters that is always new."""

    @abc.abstractmethod
    def decode(self, examples: Any, rows: EncodedRows, outputs: np.ndarray) -> Predictions:
        """Returns the predictions, from which scores, files, reports and streams are made.

        Args:
            examples: of a file or a stream.
            rows: the encoded examples.
            outputs: of the objective's `predict`, as `outputs.predict_all` returns them.
        """

    @abc.abstractmethod
    def score(self, predictions: Any) -> dict[str, float]:
        """Returns every metric of predictions for labelled examples, in the order of `metrics`."""

    @abc.abstractmethod
    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        """Returns what reads the lines of a stream.

        Args:
            file_format: one of `lines.FORMATS`.
            **columns: names of `text_a`, `text_b` and `id` that differ from those of the training file.
        """

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> float:
        """Returns the mean loss of the outputs, each example counting the same."""
        return self.objective().evaluation_loss(outputs, self.targets(rows))

    @abc.abstractmethod
    def targets(self, rows: EncodedRows) -> Any:
        """Returns the targets of all outputs, as the objective's `criterion` takes them."""

    @abc.abstractmethod
    def known_metrics(self) -> tuple[Collection[str], str]:
        """Returns the metrics that there are, and what messages say is scored."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns the names of the metrics that are reported; the first one selects the best checkpoint.

        Raises:
            UserError: the configuration names one that does not exist.
        """
        known, what = self.known_metrics()
        return metrics.parse(self.config.metrics or ",".join(self.spec.metrics), known, what)

    def describe(self, examples: Any, rows: EncodedRows) -> str:
        """Returns one line on a file's labels, or an empty text."""
        return ""

    @property
    def rows_per_example(self) -> int:
        """Returns the number of consecutive rows that form one question."""
        return 1

    @property
    def packs(self) -> bool:
        """Returns whether several examples may share a row in training."""
        return False

    @property
    def trains_encoder(self) -> bool:
        """Returns whether the encoder is trained, and not only the head."""
        return True

    def optimizer(self, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns what updates the parameters, from the optimizer that the configuration describes."""
        return optimizer

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: Mapping[str, Any], log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows of each split, with what is the same in every epoch.

        Args:
            rows: by split.
            mesh: of the run.
            run: the run's configuration.
            log: gets one line for each thing that is worth saying.
        """
        return rows

    def set_null_threshold(self, threshold: float) -> None:
        """Changes how much more likely no answer must be than the best one.

        Raises:
            UserError: every question has an answer, or the task has no questions.
        """
        raise UserError(
            f"--null_score_diff_threshold={threshold:g}: is for questions that may have no answer, as in "
            f"SQuAD 2.0; the run's task is {self.spec.name}"
        )

    @classmethod
    def detect_format(cls, path: str, file_format: str) -> str:
        """Returns the format of a file by its name, or the one that `config.data.format` gives.

        Raises:
            UserError: the task cannot read it, or its name does not say what it is.
        """
        raise NotImplementedError

    @classmethod
    def check_values(cls, config: Any, spec: TaskSpec) -> None:
        """Raises UserError for values that contradict the task; `config` is that of the run."""
        return

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec, formats: set[str]) -> Iterator[tuple[str, str]]:
        """Yields (field, reason) for each field of this class that the run, as it is configured, does not
        use.

        Args:
            config: of the run.
            spec: of its task.
            formats: of the run's files, as far as their names say.
        """
        yield from ()
