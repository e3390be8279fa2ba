"""Predictions of a reranker: the score of each pair, and the rank of the relevant document of each query."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import TablePredictions, rounded


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
