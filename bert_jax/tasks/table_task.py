"""The base class of tasks whose examples are rows of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.config import DataConfig, TaskConfig, option
from bert_jax.tasks.readers import sources, tables
from bert_jax.tasks.readers.lines import FIELDS, LineReader, TableLines
from bert_jax.tasks.readers.tables import Columns, Examples
from bert_jax.tasks.rows import windows
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.spec import TaskSpec


@dataclasses.dataclass(frozen=True)
class TableData(DataConfig):
    """The `config.data.*` fields of tasks on tables."""

    text_b: str = option("", "the column of the second text of a pair")
    header: bool = option(True, "whether the first row names the columns")
    quoting: str = option("auto", 'whether `"` quotes a field: in CSV, and not in TSV; `csv`, `none`')


@dataclasses.dataclass(frozen=True)
class TableConfig(TaskConfig):
    """The fields of tasks whose examples are rows of a table."""

    doc_stride: int = option(
        0, "tokens from one window of a longer text, of a question its context, to the next; 0: it is cut",
        maximum=2**24,
    )  # fmt: skip
    data: TableData = TableData()


class TableTask(FinetuneTask):
    """Base class of tasks whose examples are rows of a table or of a JSON-lines file.

    With `config.doc_stride`, texts longer than a row are split into windows. Each window is trained with the
    label of the example, and the prediction of an example is the mean of the outputs of its windows.
    """

    Config = TableConfig
    config: TableConfig

    @classmethod
    def columns_of(cls, config: TableConfig, spec: TaskSpec) -> Columns:
        """Returns the columns of a run's files.

        A task may define its columns. If the configuration names a text or label column, it describes a
        different table, and all columns come from the configuration. Otherwise its `id` and `choices`
        override those of the task, and its `header` can only turn the header off.
        """
        data = config.data
        if spec.columns is not None and not (data.text_a or data.text_b or data.label):
            given = {name: getattr(data, name, "") for name in ("id", "choices")}
            given = {name: value for name, value in given.items() if value}
            return dataclasses.replace(spec.columns, **given, header=spec.columns.header and data.header)
        return Columns(
            data.text_a, data.text_b, data.label, data.id, data.header, getattr(data, "choices", "")
        )

    @property
    def columns(self) -> Columns:
        """Returns the columns of the run's files."""
        return self.columns_of(self.config, self.spec)

    @property
    def has_windows(self) -> bool:
        """Returns whether an example may have several rows, whose outputs are averaged."""
        return bool(self.config.doc_stride)

    def line_reader(self, file_format: str = "auto", **columns: str) -> LineReader:
        return TableLines(file_format, self.line_names(columns))

    def line_names(self, columns: dict[str, str]) -> dict[str, str]:
        """Returns the names of `text_a`, `text_b` and `id` in the JSON objects of a stream."""
        return {field: getattr(self.columns, field) for field in FIELDS} | columns

    def targets(self, rows: EncodedRows) -> np.ndarray:
        """Returns the targets of the examples: [examples, ...]."""
        return rows.targets["targets"][:: rows.rows_per_example][windows.first_rows(rows.group_examples)]

    def targets_if_any(self, rows: EncodedRows) -> np.ndarray | None:
        """Returns the targets of the examples, or None if they have no labels."""
        return self.targets(rows) if rows.targets else None

    @classmethod
    def detect_format(cls, path: str, file_format: str) -> str:
        return tables.detect_format(path, file_format)

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec, formats: set[str]) -> Iterator[tuple[str, str]]:
        if formats == {sources.PREPARED}:
            for name in ("data.format", "data.quoting", "data.header"):
                yield name, f"it is of files, and {config.data_dir} is a prepared data set"
        elif formats == {"jsonl"}:
            for name in ("data.quoting", "data.header"):
                yield name, f"it is of TSV and CSV, and {config.data.train} is JSON-lines"

    def read_table(self, path: str, columns: Columns, parse_label: Any = None, **options: Any) -> Examples:
        """Returns the examples of a table; the options are those of `tables.read_examples`."""
        options = {"file_format": self.config.data.format, "quoting": self.config.data.quoting} | options
        return sources.read_examples(path, columns, parse_label=parse_label, **options)
