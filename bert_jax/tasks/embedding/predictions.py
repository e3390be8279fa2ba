"""Predictions for pairs of texts with a vector each: their similarity, or the rank of the second text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import DIGITS, NumberPredictions, TablePredictions

_CHUNK = 1024  # anchors whose cosines with all texts are computed at a time


@dataclasses.dataclass
class SimilarityPredictions(NumberPredictions):
    """The cosine of both texts of each pair; `targets` are similarities on any scale."""

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "label", "cosine", "rank of the label", "rank of the cosine"),
        *("text_a", "text_b"),
    )

    def errors(self) -> Iterator[Sequence[Any]]:
        """Yields all pairs, those first whose ranks by label and by cosine, from 0 to 1, differ most."""
        ranks = [_ranks(self.targets), _ranks(self.predicted)]
        for i in np.argsort(-np.abs(ranks[0] - ranks[1]), kind="stable"):
            shown = (
                f"{self.targets[i]:g}",
                f"{self.predicted[i]:.4f}",
                *(f"{rank[i]:.3f}" for rank in ranks),
            )
            yield self.examples.lines[i], *shown, *self.texts(i)

    def plot(self, path: str) -> None:
        """Plots the cosines against the labels."""
        error_analysis.plot_numbers(path, self.targets, self.predicted, "cosine", same_scale=False)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the share of values that are smaller, and half of those that are equal: float64 [N]."""
    ordered = np.sort(values)
    below, until = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (below + until) / 2 / len(values)


@dataclasses.dataclass
class RetrievalPredictions(TablePredictions):
    """The rank of the second text of each pair among those of all pairs, by its cosine with the first one.

    Equal second texts are one candidate, and other second texts of an equal first text are none.

    Attributes:
        outputs: float32 [N, 1], the cosines of the pairs.
        vectors: float32 [N, 2, H], of length 1.
    """

    vectors: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2, 0), np.float32))

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "rank", "cosine", "best cosine", "text_a", "text_b", "best text"),
    )

    @functools.cached_property
    def _best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rank of each positive, and the best candidate with its cosine."""
        first, second = self.examples.texts_a, self.examples.texts_b
        anchors = np.unique(first, return_inverse=True)[1]
        rows, numbers = np.unique(second, return_index=True, return_inverse=True)[1:]
        candidates = self.vectors[rows, 1]
        partners: dict[int, list[int]] = {}
        for anchor, number in zip(anchors.tolist(), numbers.tolist(), strict=True):
            partners.setdefault(anchor, []).append(number)
        ranks, best, highest = (np.empty(len(first), kind) for kind in (np.int64, np.int64, np.float32))
        for begin in range(0, len(first), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            cosines = self.vectors[part, 0] @ candidates.T
            own = np.take_along_axis(cosines, numbers[part, None], axis=1)
            for row, anchor in enumerate(anchors[part].tolist()):
                cosines[row, partners[anchor]] = -np.inf
            np.put_along_axis(cosines, numbers[part, None], own, axis=1)
            ranks[part] = 1 + np.sum(cosines > own, axis=1)
            best[part] = rows[np.argmax(cosines, axis=1)]
            highest[part] = cosines.max(axis=1)
        return ranks, best, highest

    @property
    def predicted(self) -> np.ndarray:
        """Returns the rank of the second text of each pair, from 1: int64 [N]."""
        return self._best[0]

    def values(self) -> list[float]:
        """Returns the cosines, rounded."""
        return [round(number, DIGITS) for number in self.outputs[:, 0].tolist()]

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        """Returns whether all pairs have the same cosine, up to 0.001."""
        return bool(np.ptp(self.outputs) < 1e-3)

    def errors(self) -> Iterator[Sequence[Any]]:
        """Yields the pairs whose second text is not the best one, those with the largest ranks first."""
        ranks, best, highest = self._best
        for i in np.argsort(-ranks, kind="stable"):
            if ranks[i] > 1:
                shown = (ranks[i], f"{self.outputs[i, 0]:.4f}", f"{highest[i]:.4f}")
                yield self.examples.lines[i], *shown, *self.texts(i), self.examples.texts_b[best[i]]

    def plot(self, path: str) -> None:
        """Plots the cosines of pairs whose second text is the best one, and of the others."""
        cosines = np.clip(self.outputs[:, 0], 0, 1)
        error_analysis.plot_confidence(path, cosines, self._best[0] == 1, "pairs", "cosine")
