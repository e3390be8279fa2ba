"""The base class of tasks whose examples are rows of a table."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import compression
from bert_jax.io.wording import counted
from bert_jax.settings.config_fields import option
from bert_jax.tasks import metrics, table
from bert_jax.tasks.base import DataConfig, FinetuneTask, TaskConfig, WindowsConfig
from bert_jax.tasks.lines import FIELDS, TableLines
from bert_jax.tasks.predictions import ClassPredictions, TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import windows
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Columns, Examples


@dataclasses.dataclass(frozen=True)
class TableData(DataConfig):
    """The `config.data.*` fields of tasks on tables."""

    text_b: str = option("", "the column of the second text of a pair")
    header: bool = option(True, "whether the first row names the columns")
    quoting: str = option("auto", 'whether `"` quotes a field: not in TSV of benchmarks; `csv`, `none`')


@dataclasses.dataclass(frozen=True)
class TableConfig(WindowsConfig):
    """The fields of tasks whose examples are rows of a table."""

    data: TableData = TableData()


class TableTask(FinetuneTask):
    """Base class of tasks whose examples are rows of a table or of a JSON lines file.

    With `config.doc_stride`, texts longer than a row are split into windows. Each window is trained with the
    label of the example, and the prediction of an example is the mean of the outputs of its windows.

    Attributes:
        Predictions: the class of the decoded predictions.
        label_may_be_empty: whether an empty label is valid.
    """

    Config: ClassVar[type[TaskConfig]] = TableConfig
    config: TableConfig
    Lines = TableLines
    Predictions: ClassVar[type[TablePredictions]] = ClassPredictions
    label_may_be_empty: ClassVar[bool] = False

    def set_up(self) -> None:
        """Checks the stride of windows."""
        pairs = bool(self.columns.text_b or self.columns.choices)
        room = self.tokenizer.layout.room(self.config.max_seq_length, pairs)
        windows.check_stride(self.config.doc_stride, self.config.max_seq_length, room, pairs)

    @classmethod
    def columns_of(cls, config: Any, spec: TaskSpec) -> Columns:
        """Returns the columns of a run's files.

        A task may define its columns. If the configuration names a text or label column, it describes a
        different table, and all columns come from the configuration. Otherwise its `id` and `choices`
        override those of the task, and its `header` can only turn the header off.
        """
        data, columns = config.data, spec.columns
        listed: dict[str, Any] = {name: getattr(data, name, "") for name in ("id", "choices", "negatives")}
        if columns is not None and not (data.text_a or data.text_b or data.label):
            header = columns.header and data.header
            return dataclasses.replace(columns, header=header, **{k: v for k, v in listed.items() if v})
        return Columns(data.text_a, data.text_b, data.label, header=data.header, **listed)

    def columns_in(self, path: str) -> Columns:
        """Returns the columns of a file, which may differ between the files of a task."""
        return self.columns

    @property
    def columns(self) -> Columns:
        """Returns the columns of the run's files."""
        return self.columns_of(self.config, self.spec)

    @property
    def has_windows(self) -> bool:
        """Returns whether an example may have several rows, whose outputs are averaged."""
        return bool(self.config.doc_stride)

    def parse_label(self, text: str) -> Any:
        """Parses a label of a file; as long as `labels` is empty, it may be any label.

        Raises:
            ValueError: the task does not have this label.
        """
        return text

    def parse_any_label(self, text: str) -> Any:
        """Parses a label as `parse_label` does; classes that training lacks may be returned as text."""
        return self.parse_label(text)

    def read(self, path: str) -> Examples:
        """Returns the rows of a table."""
        columns = self.columns_in(path)
        if not columns.label:
            raise UserError("which column holds the label? give --config.data.label=COLUMN")
        return self.read_columns(
            path, columns, self.parse_any_label, label_may_be_empty=self.label_may_be_empty
        )

    def read_columns(self, path: str, columns: Columns, parse_label: Any = None, **options: Any) -> Examples:
        """Returns the rows of a table in the format and quoting of the run; see `table.read_examples`."""
        data = self.config.data
        options = {"file_format": data.format, "quoting": data.quoting} | options
        return table.read_examples(path, columns, parse_label=parse_label, **options)

    def read_unlabeled(
        self, path: str, *, test: bool = False, format: str = "auto", **columns: Any
    ) -> Examples:
        """Returns the rows of a table, or the lines of a .txt file, with a note if single texts are empty."""
        known = (self.spec.test_columns if test else None) or self.columns_in(path)
        format = self.config.data.format if format == "auto" else format
        is_single = not (known.text_b or known.choices)
        if is_single and format == "auto" and not (columns or test):
            is_plain = compression.strip_suffix(str(path)).lower().endswith(".txt")
            format = table.LINES if is_plain else format
        quotes = known.quotes or not columns.keys().isdisjoint(("text_a", "text_b"))
        known = dataclasses.replace(known, **columns, quotes=quotes)
        examples = self.read_columns(path, known, file_format=format, flags=table.PREDICT_FLAGS)
        empty = [
            line for line, text in zip(examples.lines, examples.texts_a, strict=True) if not text.strip()
        ]
        if empty and not (known.text_b or known.choices):
            texts = counted(len(empty), "empty text is", "empty texts are")
            examples.notes.append(f"{texts} predicted all the same (first: line {empty[0]})")
        return examples

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
        return {field: getattr(self.columns, field) for field in FIELDS}
