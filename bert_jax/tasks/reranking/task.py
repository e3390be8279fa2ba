"""Reranking of documents: queries with a relevant document and others, read together with the query."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io.wording import counted
from bert_jax.objectives.multiple_choice import Reranking
from bert_jax.settings.config_fields import option
from bert_jax.tasks import error_analysis, metrics
from bert_jax.tasks.base import TableConfig, TableData, TableTask
from bert_jax.tasks.predictions import TablePredictions, rounded
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.rows import assembly
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.table import Examples


@dataclasses.dataclass
class RankingPredictions(TablePredictions):
    """The scores of the candidates of each query, of which the first one is relevant.

    Attributes:
        outputs: float32 [N, K], the scores; [N, 1] for pairs.
    """

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "rank", "score", "best score", "text_a", "text_b", "best text"),
    )

    @functools.cached_property
    def predicted(self) -> np.ndarray:
        """Returns the rank of each relevant document, from 1, behind all with an equal score: int64 [N].

        It is the last one if its score is NaN, and a candidate whose score is NaN comes before it.
        """
        return np.sum(~(self.outputs < self.outputs[:, :1]), axis=1)

    def values(self) -> list[float]:
        return rounded(self.outputs[:, 0])

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return bool(np.ptp(self.outputs, axis=1).max(initial=0.0) < 1e-3)

    def errors(self) -> Iterator[Sequence[Any]]:
        best = np.argmax(self.outputs[:, 1:], axis=1)
        for i in np.argsort(-self.predicted, kind="stable"):
            if self.predicted[i] > 1:
                text = self.examples.negatives[i][best[i]]
                shown = (self.predicted[i], *(f"{self.outputs[i, j]:.4f}" for j in (0, 1 + best[i])))
                yield self.examples.lines[i], *shown, *self.texts(i), text

    def plot(self, path: str) -> None:
        scores = self.outputs - self.outputs.max(axis=1, keepdims=True)
        shares = np.exp(scores[:, 0]) / np.exp(scores).sum(axis=1)
        error_analysis.plot_confidence(path, shares, self.predicted == 1, "queries", "probability")


@dataclasses.dataclass(frozen=True)
class RerankingData(TableData):
    """The `config.data.*` fields of reranking."""

    negatives: str = option(
        "", "the columns of documents that are not relevant, with commas between; or one of JSON lists"
    )


@dataclasses.dataclass(frozen=True)
class RerankingConfig(TableConfig):
    """The fields of reranking."""

    data: RerankingData = RerankingData()


class RerankingTask(TableTask):
    """Orders the candidates of each query; see `objectives.multiple_choice`.

    Files to evaluate on have the columns of the training file, and any number of candidates. Predictions are
    the scores of pairs.
    """

    Config = RerankingConfig
    config: RerankingConfig
    title = "reranking"
    next_command = "search --index=DIR --rerank={workdir}"
    Predictions = RankingPredictions
    scorers = metrics.RANKING
    _candidates = 1  # of a query; predictions have pairs

    def set_up(self) -> None:
        super().set_up()
        if not (self.columns.text_b and self.columns.negatives):
            raise UserError(
                "reranking compares documents: data.text_b is the relevant one, data.negatives others"
            )

    @classmethod
    def unused(cls, config: Any, spec: TaskSpec) -> Iterator[tuple[str, str]]:
        yield from super().unused(config, spec)
        yield "doc_stride", "a candidate has one row, and longer ones are cut"
        yield "data.label", "the document of data.text_b is the relevant one"

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
        return f"{counted(rows.rows_per_example, 'candidate')} of each query"

    def objective(self) -> Reranking:
        return Reranking(
            self.model_config,
            self._candidates,
            token_types=self.tokenizer.layout.types,
            classifier=self.classifier,
        )
