"""The base class of fine-tuning tasks, which read, encode, decode and score the examples of files."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax import tokenization
from bert_jax.convert import families
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.errors import UserError
from bert_jax.io import columnar, comma_lists, compression
from bert_jax.io.wording import counted
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import ClassificationHead
from bert_jax.objectives.rows import RowObjective
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Rule, option
from bert_jax.settings.finetune_config import FinetuneConfig
from bert_jax.tasks import metrics, table
from bert_jax.tasks.predictions import ClassPredictions, Predictions, TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import LINE_FIELDS, Columns, Examples, LineReader

LINEAR, BILSTM = HEADS = ("linear", "bilstm")  # the values of `head`


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The `config.data.*` fields that every task uses."""

    text_a: str = option("", "Column of the text, by name or by number from 0.")
    label: str = option("", "Column of the label.")
    id: str = option("", "Column of the id. Empty: the number of the example.")
    format: str = option(
        "auto",
        "File format: `auto` (by suffix), `tsv`, `csv`, `jsonl`; `json` for questions; `conll` for tags.",
    )


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The fields that every task uses."""

    max_seq_length: int = option(
        128,
        "Maximum tokens of a row; longer texts are truncated or split into windows.",
        minimum=4,
        maximum=2**24,
    )
    metrics: str = option("", "Comma-separated metrics; the first selects the best checkpoint.")
    head: str = option(
        LINEAR, "Output head: `linear`, or `bilstm` (two BiLSTM layers, then linear).", choices=HEADS
    )
    head_size: int = option(768, "Width of each direction of the BiLSTM head.", minimum=1, maximum=2**20)
    data: DataConfig = DataConfig()


@dataclasses.dataclass(frozen=True)
class WindowsConfig(TaskConfig):
    """The fields of tasks that split a long text into windows."""

    doc_stride: int = option(
        0, "Stride in tokens between the windows of a long text. 0: truncate it.", maximum=2**24
    )


class FinetuneTask(abc.ABC):
    """Base class of fine-tuning tasks, which are in the `TASKS` of the packages of `bert_jax.tasks`.

    Attributes:
        Config: a frozen dataclass with exactly the configuration fields that this class uses.
        Lines: the reader of examples from a stream.
        title: the name of the class in messages.
        formats: the suffixes that a prediction file may have; the first one is the default.
        export_head: the name of the head in `bert-jax convert`.
        next_command: the suggested command after training, with {workdir} for the work directory.
        rules: conditions on other fields under which fields of `Config` have an effect.
        problem_type: the `problem_type` of a sequence classification in transformers; "" for other heads.
        labels: the label names in the order of the logits; empty if there are none, or before
            `read_training`.
    """

    Config: ClassVar[type[TaskConfig]] = TaskConfig
    Lines: ClassVar[type[LineReader]] = LineReader
    title: ClassVar[str]
    formats: ClassVar[tuple[str, ...]] = (".tsv", ".csv", ".jsonl")
    export_head: ClassVar[str] = "sequence_classification"
    next_command: ClassVar[str] = "predict --workdir={workdir} --input=FILE --output=FILE"
    problem_type: ClassVar[str] = ""
    rules: ClassVar[Sequence[Rule]] = (("head_size", lambda c: c.head == BILSTM, f"head={BILSTM}"),)

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
        self.set_up()

    def set_up(self) -> None:  # noqa: B027 (most tasks have nothing to do)
        """Sets the attributes of a subclass. Raises UserError for an invalid configuration."""

    @classmethod
    def adopt_model(
        cls,
        model_config: EncoderConfig,
        tokenizer: tokenization.Tokenizer,
        config: FinetuneConfig,
        explicit: Collection[str],
        log: Callable[[str], None],
    ) -> EncoderConfig:
        """Returns the encoder configuration for a new run, combined from `init_from` and the run.

        `explicit` are the fields of `config.model` that the user set.
        """
        return model_config

    @abc.abstractmethod
    def read(self, path: str) -> Any:
        """Returns the labeled examples of a file, a `FileReport` with a length."""

    def read_training(self, path: str) -> Any:
        """Returns the examples of the training file, and sets `labels` if the file determines them."""
        return self.read(path)

    def augmented(self, examples: Any) -> Any:
        """Returns the examples to train on, made from the selected examples of the training file."""
        return examples

    @abc.abstractmethod
    def read_unlabeled(self, path: str, *, test: bool = False, format: str = "auto", **columns: Any) -> Any:
        """Returns the examples of a file without reading labels.

        `test` is whether the file has the columns of the benchmark's test set, and `columns` are the columns
        that differ from the training file's columns.
        """

    @abc.abstractmethod
    def encode(self, examples: Any) -> EncodedRows:
        """Returns the rows of the examples, with targets if they have labels."""

    @abc.abstractmethod
    def objective(self) -> RowObjective:
        """Returns the training objective."""

    @abc.abstractmethod
    def decode(self, examples: Any, rows: Any, outputs: np.ndarray) -> Predictions:
        """Returns the predictions, the source of scores, files and streams.

        `rows` is the result of `encode` for the examples, and `outputs` the result of `outputs.predict_all`.
        """

    @abc.abstractmethod
    def score(self, predictions: Any) -> dict[str, float]:
        """Returns the value of each metric for labeled examples, in the order of `metrics`."""

    @property
    @abc.abstractmethod
    def known_metrics(self) -> Collection[str]:
        """Returns the names of all metrics that can be configured."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Returns the names of the reported metrics; the first one selects the best checkpoint."""
        names, known = comma_lists.names(self.config.metrics) or self.spec.metrics, self.known_metrics
        if not set(names) <= set(known):
            expected = f"metrics of the task {self.spec.name}: {', '.join(known)}"
            raise UserError(f"metrics={self.config.metrics}: expected {expected}")
        return tuple(names or known)

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> float | None:
        """Returns the mean loss of the outputs with equal weights for all targets, or None."""
        return self.objective().evaluation_loss(*rows.compared(outputs))

    @property
    def packs(self) -> bool:
        """Returns whether rows may hold several examples; see `bert_jax.tasks.rows.packing`."""
        return getattr(self.config, "pack", False)

    @property
    def classifier(self) -> ClassificationHead:
        """Returns the head of the model's family, with a BiLSTM if `head` is "bilstm"."""
        head = families.of(self.model_config).classifiers[self.export_head]
        return head.with_lstm(self.config.head_size) if self.config.head == BILSTM else head

    def describe(self, examples: Any, rows: Any) -> str:
        """Returns a one-line summary of a file's labels, or an empty string."""
        return ""

    def line_reader(self, **columns: str) -> LineReader:
        """Returns a reader for the lines of a stream; `columns` replace the training file's columns."""
        return self.Lines(self.line_names() | columns)

    def line_names(self) -> dict[str, str]:
        """Returns the names of `text_a`, `text_b` and `id` in the JSON objects of a stream."""
        data = self.config.data
        return {field: getattr(data, field, "") or self.Lines.own_names[field] for field in LINE_FIELDS}

    def files_beside(self, path: str) -> Sequence[str]:
        """Returns the additional files that predictions write next to `path`."""
        return ()

    @classmethod
    def unused(cls, config: Any) -> Iterator[tuple[str, str]]:
        """Yields (field, reason) for each field of this class that must keep its default in this run."""
        for kind in cls.__mro__:
            yield from config_fields.unused(config, vars(kind).get("rules", ()))

    @property
    def least_batch_size(self) -> int:
        """Returns the minimum number of groups in a global batch: 2 if the loss compares groups."""
        return 1

    @property
    def scores_pairs(self) -> bool:
        """Returns whether the output for a pair of texts is one score or the probabilities of two labels."""
        return self.export_head == "sequence_classification" and len(self.labels) <= 2

    @property
    def sentence(self) -> SentenceVectors | None:
        """Returns the settings of sentence embeddings; None if the task does not train them."""
        return None

    @property
    def freeze(self) -> str:
        """Returns a regular expression for the names of the parameters that the task freezes."""
        return ""

    def precompute(
        self, rows: dict[str, EncodedRows], mesh: jax.sharding.Mesh, run: FinetuneConfig, log: Callable
    ) -> dict[str, EncodedRows]:
        """Returns the rows of each split, with precomputed features that are the same in every epoch."""
        return rows


@dataclasses.dataclass(frozen=True)
class TableData(DataConfig):
    """The `config.data.*` fields of tasks on tables."""

    text_b: str = option("", "Column of the second text.")
    header: bool = option(True, "The first row names the columns.")
    quoting: str = option(
        "auto",
        'Quoting with `"`: `csv`, `none`, or `auto` (`csv` except in TSV files of benchmarks).',
        choices=("auto", "csv", "none"),
    )


@dataclasses.dataclass(frozen=True)
class TableConfig(TaskConfig):
    """The fields of tasks whose examples are rows of a table."""

    data: TableData = TableData()


@dataclasses.dataclass(frozen=True)
class NegativesData(TableData):
    """The `config.data.*` fields of tasks on texts with negatives."""

    negatives: str = option(
        "", "Columns of irrelevant documents, comma-separated, or one column of JSON lists."
    )


@dataclasses.dataclass(frozen=True)
class NegativesConfig(TableConfig):
    """The fields of tasks on texts with negatives."""

    data: NegativesData = NegativesData()


class TableTask(FinetuneTask):
    """Base class of tasks whose examples are rows of a table or of a JSON lines file.

    Attributes:
        Predictions: the class of the decoded predictions.
        label_may_be_empty: whether an empty label is valid.
    """

    Config: ClassVar[type[TaskConfig]] = TableConfig
    config: TableConfig
    Predictions: ClassVar[type[TablePredictions]] = ClassPredictions
    label_may_be_empty: ClassVar[bool] = False

    @classmethod
    def columns_of(cls, config: Any, spec: TaskSpec) -> Columns:
        """Returns the columns of a run's files.

        If the configuration names a text or label column, all columns come from the configuration. Otherwise
        its other columns override the task's columns, and its `header` can only turn the header off.
        """
        data, columns = config.data, spec.columns
        further: dict[str, Any] = {
            name: getattr(data, name, "") for name in ("id", "choices", "negatives", "language")
        }
        if columns is not None and not (data.text_a or data.text_b or data.label):
            header = columns.header and data.header
            return dataclasses.replace(columns, header=header, **{k: v for k, v in further.items() if v})
        return Columns(data.text_a, data.text_b, data.label, header=data.header, **further)

    @property
    def columns(self) -> Columns:
        """Returns the columns of the run's files."""
        return self.columns_of(self.config, self.spec)

    def require(self, *names: str, columns: Columns | None = None) -> None:
        """Raises UserError if one of these fields of the columns is empty."""
        for name in names:
            if not getattr(columns or self.columns, name):
                raise UserError(f"{self.title} needs --config.data.{name}=COLUMN")

    def parse_label(self, text: str) -> Any:
        """Parses a label; any is valid as long as `labels` is empty. Raises ValueError for unknown ones."""
        return text

    def parse_any_label(self, text: str) -> Any:
        """Parses a label like `parse_label`, but may return classes that training lacks as text."""
        return self.parse_label(text)

    def read(self, path: str) -> Examples:
        """Returns the rows of a table."""
        return self.read_labeled(path, self.columns)

    def read_labeled(self, path: str, columns: Columns) -> Examples:
        """Returns the rows of a table with these columns."""
        self.require("label", columns=columns)
        examples = self.read_columns(
            path, columns, self.parse_any_label, label_may_be_empty=self.label_may_be_empty
        )
        return _note_empty(examples, "used")

    def read_columns(self, path: str, columns: Columns, parse_label: Any = None, **options: Any) -> Examples:
        """Returns the rows of a table in the format and quoting of the run; see `table.read_examples`."""
        self.require("text_a", columns=columns)
        spec, data = self.spec, self.config.data
        known = columns in (spec.columns, spec.test_columns, spec.train_columns)
        if known and spec.hub_columns and columnar.is_columnar(table.parts(path)[0]):
            language = columns.language and spec.hub_columns.language
            columns = dataclasses.replace(spec.hub_columns, language=language)
        options = {"file_format": data.format, "quoting": data.quoting} | options
        return table.read_examples(path, columns, parse_label=parse_label, **options)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> Examples:
        """Returns the rows of a table or the lines of a .txt file, with a note if single texts are empty."""
        known = (self.spec.test_columns if test else None) or self.unlabeled_columns
        is_single = not (known.text_b or known.choices)
        format = self.config.data.format if format == "auto" else format
        if is_single and format == "auto" and not (columns or test):
            is_plain = compression.strip_suffix(str(path)).lower().endswith(".txt")
            format = table.LINES if is_plain else format
        quotes = known.quotes or not columns.keys().isdisjoint(("text_a", "text_b"))
        known = dataclasses.replace(known, **{"language": ""} | columns, quotes=quotes)
        return _note_empty(self.read_columns(path, known, file_format=format), "predicted")

    @property
    def unlabeled_columns(self) -> Columns:
        """Returns the columns of files to predict; flags may override them."""
        return self.columns

    def decode(self, examples: Examples, rows: EncodedRows, outputs: np.ndarray) -> TablePredictions:
        """Returns the predictions of the examples."""
        return self.Predictions(examples, outputs, rows.example_targets(), self.labels)

    @property
    @abc.abstractmethod
    def scorers(self) -> Mapping[str, metrics.Metric]:
        """Returns the function of each metric."""

    @property
    def known_metrics(self) -> tuple[str, ...]:
        """Returns the names of `scorers`."""
        return tuple(self.scorers)

    def score(self, predictions: TablePredictions) -> dict[str, float]:
        """Returns the value of each metric."""
        predicted, targets = predictions.predicted, predictions.targets
        return {name: float(self.scorers[name](predicted, targets)) for name in self.metrics}

    def line_names(self) -> dict[str, str]:
        """Returns the columns of the training file."""
        return {field: getattr(self.unlabeled_columns, field) for field in LINE_FIELDS}


def _note_empty(examples: Examples, use: str) -> Examples:
    """Returns the examples, with a note if single texts are empty."""
    empty = sum(not text.strip() for text in examples.texts_a)
    if empty and not (examples.texts_b or examples.choices):
        texts = counted(empty, "empty text is", "empty texts are")
        examples.notes.append(f"{texts} {use} too")
    return examples
