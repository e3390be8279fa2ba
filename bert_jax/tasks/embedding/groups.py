"""The base class of tasks that learn to compare texts, which it reads and encodes in groups."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.settings.config_fields import option
from bert_jax.tasks import metrics
from bert_jax.tasks.lines import FIELDS
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.windows import Ids, Pair
from bert_jax.tasks.table import STSB, Columns, Examples, parse_number
from bert_jax.tasks.table_task import TableConfig, TableData, TableTask

# What to give if a file to evaluate on has no pairs, or none with similarities, for messages.
EVAL_COLUMNS = "--config.data.eval_columns=TEXT,TEXT,SCORE"


@dataclasses.dataclass(frozen=True)
class GroupsData(TableData):
    """The `config.data.*` fields of groups of texts."""

    negatives: str = option(
        "", "the columns of hard negatives, with commas between; or one of JSON lists of them"
    )
    eval_columns: str = option(
        "",
        "of the evaluation file, `TEXT,TEXT`, or `TEXT,TEXT,SCORE` with the similarity of each pair; empty: "
        "those of the training file",
    )
    prefix_a: str = option("", "put before each first text, such as `query: `")
    prefix_b: str = option("", "put before each second text and hard negative, such as `passage: `")


@dataclasses.dataclass(frozen=True)
class GroupsConfig(TableConfig):
    """The fields of tasks on groups of texts."""

    temperature: float = option(0.05, "that cosines, or scores, are divided by", above=0, maximum=100)
    data: GroupsData = GroupsData()


class GroupsTask(TableTask):
    """Base class of tasks on groups of texts: an anchor, its positive, and any number of hard negatives.

    Files to evaluate on have pairs, an anchor and its positive.
    """

    Config = GroupsConfig
    config: GroupsConfig
    export_head = "none"
    _group = 2  # texts in a group of training

    def set_up(self) -> None:
        super().set_up()
        if self.columns.negatives and not self.columns.text_b:
            raise UserError("data.negatives: without data.text_b there is no positive beside them")
        self.eval_columns = self._eval_columns()

    def _eval_columns(self) -> Columns:
        names = [name.strip() for name in self.config.data.eval_columns.split(",")]
        if not names[0]:
            return dataclasses.replace(self.columns, negatives="")
        if not (2 <= len(names) <= 3 and all(names)):
            raise UserError(f"data.eval_columns={','.join(names)}: expected TEXT,TEXT or TEXT,TEXT,SCORE")
        label = names[2] if len(names) == 3 else ""
        return Columns(names[0], names[1], label, header=self.columns.header, quotes=",".join(names) != STSB)

    def columns_in(self, path: str) -> Columns:
        return self.eval_columns

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        yield from super().unused(config, spec)
        yield "head", "vectors of texts have no such head"
        yield "doc_stride", "a text has one row, and longer ones are cut"
        yield "distillation.teacher", "vectors of texts cannot be distilled yet"
        if not config.data.eval:
            yield "data.eval_columns", "there is nothing to evaluate on, give data.eval"
        if config.data.eval_columns:
            yield "data.id", "data.eval_columns names the columns of the file to evaluate on, without ids"

    def batch_size_error(self, batch_size: int) -> str:
        if batch_size > 1 or self.columns.negatives:
            return ""
        return "batch_size=1: each text is compared with the others of its batch; expected 2 or more"

    # Reading

    def read_training(self, path: str) -> Examples:
        return self._read_groups(path, dataclasses.replace(self.columns, label=""))

    def _read_groups(self, path: str, columns: Columns, parse_label: Any = None) -> Examples:
        examples = self.read_columns(path, columns, parse_label)
        if examples.negatives:
            self._group = 2 + len(examples.negatives[0])
        return examples

    def read(self, path: str) -> Examples:
        columns = self.eval_columns
        if not columns.text_b:
            raise UserError(f"{path}: which columns hold the pairs to evaluate on? give {EVAL_COLUMNS}")
        return self.read_columns(path, columns, parse_number if columns.label else None)

    def line_names(self) -> dict[str, str]:
        return {field: getattr(self.eval_columns, field) for field in FIELDS}

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        """Returns the number of texts of a group, if there are several."""
        return f"{rows.rows_per_example} texts in a group" if rows.rows_per_example > 1 else ""

    # Rows

    def encode(self, examples: Examples) -> EncodedRows:
        data, first, second = self.config.data, examples.texts_a, examples.texts_b
        others = [[text] if self.repeats_single_texts else [] for text in first]
        if second:
            others = [[text] for text in second]
        if examples.negatives:
            others = [[*one, *negatives] for one, negatives in zip(others, examples.negatives, strict=True)]
        groups = [[text, *more] for text, more in zip(first, others, strict=True)]
        texts, count = list(itertools.chain.from_iterable(groups)), len(groups[0])
        prefixes = [data.prefix_a, *[data.prefix_b if second else data.prefix_a] * (count - 1)]
        prefixed = [prefix + text for prefix, text in zip(itertools.cycle(prefixes), texts, strict=False)]
        forms = itertools.cycle([self.form(True), *[self.form(False)] * (count - 1)])
        layout = self.tokenizer.layout
        rows = (
            assembly.truncate([*before, *ids], None, layout.room(length, False))
            for ids, (length, before) in zip(assembly.tokenize(self.tokenizer, prefixed), forms, strict=False)
        )
        are_classes = bool(examples.labels) and isinstance(examples.labels[0], int)
        encoded = assembly.assemble(
            _by_group(rows, count),
            examples.labels,
            self.tokenizer,
            self.config.max_seq_length,
            target_dtype=np.int32 if are_classes else np.float32,
            rows_per_example=count,
        )
        # Texts are equal whatever is put before them: one that is equal to its anchor is no negative.
        numbers: dict[str, int] = {}
        encoded.targets["texts"] = np.array(
            [numbers.setdefault(text, len(numbers)) for text in texts], np.int32
        )
        encoded.least_groups = 2 if self.batch_size_error(1) else 1
        return encoded

    @property
    def repeats_single_texts(self) -> bool:
        """Returns whether a text without a second one comes twice, as its own positive."""
        return True

    def form(self, is_anchor: bool) -> tuple[int, Ids]:
        """Returns the largest number of tokens of a row, and the ids to put before its text."""
        return self.config.max_seq_length, []

    # Predictions

    @property
    def scorers(self) -> Mapping[str, metrics.Metric]:
        return metrics.SIMILARITY if self.eval_columns.label else metrics.RANKING

    def loss(self, rows: EncodedRows, outputs: np.ndarray) -> None:
        """Returns None: the loss of a batch depends on its size, and files of similarities have another."""
        return None


def _by_group(rows: Iterable[tuple[list[Pair], bool]], count: int) -> Iterator[tuple[list[Pair], bool]]:
    for group in zip(*[iter(rows)] * count, strict=True):
        pairs, cut = zip(*group, strict=True)
        yield list(itertools.chain.from_iterable(pairs)), any(cut)
