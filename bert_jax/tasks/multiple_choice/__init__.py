"""Tasks that choose among texts for a given text: multiple choice (paper, section 4.4) and reranking."""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.objectives.multiple_choice import MultipleChoice, Reranking
from bert_jax.settings.config_fields import option
from bert_jax.tasks import metrics
from bert_jax.tasks.base import NegativesConfig, TableConfig, TableData, TableTask
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Columns, Examples, LineReader


@dataclasses.dataclass(frozen=True)
class ChoiceData(TableData):
    """The `config.data.*` fields of multiple choice."""

    choices: str = option("", "Columns of the choices, comma-separated, or one column of JSON lists.")


@dataclasses.dataclass(frozen=True)
class ChoiceConfig(TableConfig):
    """The fields of multiple choice."""

    data: ChoiceData = ChoiceData()


class MultipleChoiceTask(TableTask):
    """Selects the choice that best continues a text. The labels are the numbers of the choices, from 0."""

    Config = ChoiceConfig
    config: ChoiceConfig
    title = "multiple choice"
    export_head = "multiple_choice"
    scorers = {"accuracy": metrics.accuracy}  # noqa: RUF012

    def set_up(self) -> None:
        self.require("choices")

    def read_training(self, path: str) -> Examples:
        examples = self.read(path)
        self.labels = tuple(map(str, range(len(examples.choices[0]))))
        return examples

    def objective(self) -> MultipleChoice:
        types = self.tokenizer.layout.types
        count = len(self.labels)
        return MultipleChoice(self.model_config, count, token_types=types, classifier=self.classifier)

    def parse_label(self, text: str) -> int:
        """Returns the number of a choice, counted from 0, given as a number or as a letter; A is 0."""
        text = text.strip()
        is_letter = len(text) == 1 and text.upper() in string.ascii_uppercase
        return string.ascii_uppercase.index(text.upper()) if is_letter else int(text)

    def encode(self, examples: Examples) -> EncodedRows:
        count = len(examples.choices[0])
        if count != len(self.labels):
            raise UserError(
                f"{examples.path}: expected {len(self.labels)} choices, as in training, not {count}"
            )
        starts = examples.texts_b or [""] * len(examples)
        endings = [
            [f"{start} {choice}".strip() for choice in choices]
            for start, choices in zip(starts, examples.choices, strict=True)
        ]
        return assembly.encode_choices(
            examples.texts_a, endings, examples.labels, self.tokenizer, self.config.max_seq_length
        )

    def line_reader(self, **columns: str) -> LineReader:
        return LineReader(self.line_names() | columns, self.columns.names("choices"), len(self.labels))


@dataclasses.dataclass
class RankingPredictions(TablePredictions):
    """The scores of the candidates of each query, float32 [N, K]; the first candidate is relevant."""

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns the rank of each relevant document, from 1, int64 [N]. In ties, it comes last.

        A relevant document with the score NaN has the last rank; other candidates with NaN come before it.
        """
        return np.sum(~(self.outputs < self.outputs[:, :1]), axis=1)

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return bool(np.ptp(self.outputs, axis=1).max(initial=0.0) < 1e-3)


class RerankingTask(TableTask):
    """Orders the candidates of each query; see `objectives.multiple_choice`.

    Evaluation files may have any number of candidates. Predictions are the scores of pairs.
    """

    Config = NegativesConfig
    config: NegativesConfig
    title = "reranking"
    rules = (("data.label", lambda c: False, "a task with labels"),)
    next_command = "search --index=DIR --rerank={workdir}"
    Predictions = RankingPredictions
    scorers = metrics.RANKING
    _candidates = 1  # per query; predictions have pairs

    def set_up(self) -> None:
        self.require("text_b", "negatives")

    def read_training(self, path: str) -> Examples:
        examples = self.read(path)
        self._candidates = 1 + len(examples.negatives[0])
        return examples

    def read(self, path: str) -> Examples:
        examples = self.read_columns(path, self.columns)
        return dataclasses.replace(examples, labels=[0] * len(examples))

    def read_unlabeled(self, path: str, **options: Any) -> Examples:
        return super().read_unlabeled(path, **{"negatives": "", **options})

    def encode(self, examples: Examples) -> EncodedRows:
        others = examples.negatives or [[]] * len(examples)
        candidates = [[first, *more] for first, more in zip(examples.texts_b, others, strict=True)]
        return assembly.encode_choices(
            examples.texts_a, candidates, examples.labels, self.tokenizer, self.config.max_seq_length
        )

    def describe(self, examples: Examples, rows: EncodedRows) -> str:
        return f"{counted(rows.rows_per_example, 'candidate')} per query"

    def objective(self) -> Reranking:
        return Reranking(
            self.model_config,
            self._candidates,
            token_types=self.tokenizer.layout.types,
            classifier=self.classifier,
        )


_DEFAULTS = {"batch_size": 16, "optimizer.learning_rate": 2e-5}  # paper, section 4.4

TASKS = (
    TaskSpec("multiplechoice", MultipleChoiceTask, defaults=_DEFAULTS),
    # SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), with the columns of the original files.
    TaskSpec(
        "swag",
        MultipleChoiceTask,
        columns=Columns("sent1", "sent2", "label", choices="ending0,ending1,ending2,ending3"),
        folder="swag",
        file_name="{split}",
        splits=(
            ("train", ("train.csv", "train.jsonl")),
            ("dev", ("val.csv", "dev.csv", "val.jsonl", "dev.jsonl")),
            ("test", ("test.csv", "test.jsonl")),
        ),
        defaults=_DEFAULTS,
    ),
    TaskSpec(
        "codah",
        MultipleChoiceTask,
        columns=Columns("1", label="6", header=False, choices="2,3,4,5", quotes=False),
        folder="codah",
        file_name="{split}.tsv",
        defaults=_DEFAULTS,
    ),
    TaskSpec("reranking", RerankingTask, defaults={"batch_size": 8, "epochs": 1.0, "max_seq_length": 180}),
)
