"""The registry entry of a fine-tuning task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.tasks.readers import sources
from bert_jax.tasks.readers.tables import Columns


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task that `config.task` can name.

    Attributes:
        name: the name in lower case, without punctuation.
        task: the subclass of `base.FinetuneTask` that reads, encodes and scores the task.
        metrics: the metrics in the order in which they are reported; the first one selects the best
            checkpoint. Empty for all metrics of the class.
        columns: the columns of the task's files; None if the configuration names them.
        test_columns: the columns of the benchmark's test file, which has no labels; None if they are the
            same.
        labels: the labels in the order of the logits; None if they are inferred from the training rows.
        folder: a subfolder of `data_dir` in which the files may also be.
        file_name: the name of a split's file in `data_dir`, with {split} for the split; empty if the
            configuration names each file.
        splits: (split, names that may replace {split}) for each split whose file is named differently.
        prepared: whether the task is part of the data set `glue` of tensorflow-datasets.
        defaults: the values of configuration fields whose defaults differ from those of other tasks.
    """

    name: str
    task: type[Any]
    metrics: tuple[str, ...] = ()
    columns: Columns | None = None
    test_columns: Columns | None = None
    labels: tuple[str, ...] | None = None
    folder: str = ""
    file_name: str = ""
    splits: tuple[tuple[str, tuple[str, ...]], ...] = ()
    prepared: bool = False
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def file(self, data_dir: str, split: str) -> str:
        """Returns the path of a split: DATA_DIR/FOLDER/FILE_NAME, DATA_DIR/FILE_NAME, or a prepared data set.

        Raises:
            UserError: there is no such file. The message lists the paths that were tried.
        """
        splits = dict(self.splits).get(split, (split,))
        return sources.source_of(data_dir).find(data_dir, self, splits)
