"""What distinguishes one task from the others of its class."""

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
        name: in lower case, without punctuation.
        task: the class that reads, encodes and scores it: a subclass of `base.FinetuneTask`.
        metrics: reported in this order; the first one selects the best checkpoint. Empty: all that the class
            has.
        columns: of its files; None where the configuration names them.
        test_columns: of the benchmark's test file, where its layout differs. It never has labels.
        labels: the order of the logits; None where the labels are those of the training rows.
        folder: of `data_dir`, where the files may also lie in such a folder of it.
        file_name: the name of a split's file in `data_dir`, with {split}; empty where files are given one by
            one.
        splits: what {split} may be, for the splits whose files have other names.
        prepared: whether the data set `glue` of tensorflow-datasets has it.
        defaults: values of fields of the configuration that differ from those of other tasks.
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
        """Returns the path of a split: DATA_DIR/FOLDER/FILE_NAME, DATA_DIR/FILE_NAME, or a prepared one.

        Raises:
            UserError: there is none, with the places where it was looked for.
        """
        splits = dict(self.splits).get(split, (split,))
        return sources.source_of(data_dir).find(data_dir, self, splits)
