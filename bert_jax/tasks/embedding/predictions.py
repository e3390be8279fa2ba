"""Predictions for pairs of texts with vectors: their similarity, or the rank of the second text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bert_jax.objectives.embedding import late_interaction
from bert_jax.tasks import error_analysis
from bert_jax.tasks.predictions import NumberPredictions, TablePredictions, digits, rounded

_CHUNK = 1024  # anchors whose scores with all texts are computed at a time
_SAME = 1e-3  # difference of scores up to which they are the same
_ROUNDING = 2e-6  # of float32 scores, relative to those above 1
_DOCUMENTS = 256  # texts whose vectors of tokens are padded to one length at a time
_MULTIPLE = 32  # of tokens, that this length is rounded up to


@dataclasses.dataclass
class SimilarityPredictions(NumberPredictions):
    """The cosine of both texts of each pair; `targets` are similarities on any scale."""

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "label", "cosine", "rank of the label", "rank of the cosine"),
        *("text_a", "text_b"),
    )

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return bool(np.ptp(self.outputs) < _SAME)

    def errors(self) -> Iterator[Sequence[Any]]:
        ranks = [_ranks(self.targets), _ranks(self.predicted)]
        for i in np.argsort(-np.abs(ranks[0] - ranks[1]), kind="stable"):
            shown = (
                digits(self.targets[i]),
                f"{self.predicted[i]:.4f}",
                *(f"{rank[i]:.3f}" for rank in ranks),
            )
            yield self.examples.lines[i], *shown, *self.texts(i)

    def plot(self, path: str) -> None:
        error_analysis.plot_numbers(path, self.targets, self.predicted, "cosine", same_scale=False)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the share of values that are smaller, and half of those that are equal: float64 [N]."""
    ordered = np.sort(values)
    below, until = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return (below + until) / 2 / len(values)


def _numbered(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    numbers: dict[str, int] = {}
    of_texts = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return np.unique(of_texts, return_index=True)[1], of_texts


@dataclasses.dataclass
class RetrievalPredictions(TablePredictions):
    """The rank of the second text of each pair among those of all pairs, by its cosine with the first one.

    Equal second texts are one candidate, and other second texts of an equal first text are none. Of cosines
    that are equal up to rounding that of the pair comes last, so that a model for which all texts are alike
    finds nothing.

    Attributes:
        outputs: float32 [N, 1], the cosines of the pairs.
        vectors: float32 [N, 2, H], of length 1.
    """

    vectors: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 2, 0), np.float32))

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "rank", "cosine", "best cosine", "text_a", "text_b", "best text"),
    )

    def scores(self, anchors: slice, candidates: np.ndarray) -> np.ndarray:
        """Returns float32 [anchors, candidates], the cosines of first texts with second ones of pairs."""
        return self.vectors[anchors, 0] @ self.vectors[candidates, 1].T

    def shares(self) -> np.ndarray:
        """Returns the scores of the pairs as shares of the largest score there can be: float32 [N]."""
        return self.outputs[:, 0]

    @functools.cached_property
    def _best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        first, second = self.examples.texts_a, self.examples.texts_b
        (_, anchors), (rows, numbers) = (_numbered(texts) for texts in (first, second))
        partners: dict[int, list[int]] = {}
        for anchor, number in zip(anchors.tolist(), numbers.tolist(), strict=True):
            partners.setdefault(anchor, []).append(number)
        ranks, best, highest = (np.empty(len(first), kind) for kind in (np.int64, np.int64, np.float32))
        for begin in range(0, len(first), _CHUNK):
            part = slice(begin, begin + _CHUNK)
            scores = self.scores(part, rows)
            own = np.take_along_axis(scores, numbers[part, None], axis=1)
            for row, anchor in enumerate(anchors[part].tolist()):
                scores[row, partners[anchor]] = -np.inf
            # Products of equal vectors may differ by their places in the matrix. A score that is NaN has the
            # last rank.
            least = own - _ROUNDING * np.maximum(1, np.abs(own))
            ranks[part] = np.minimum(1 + np.sum(~(scores < least), axis=1), len(rows))
            best[part] = rows[np.argmax(scores, axis=1)]
            highest[part] = scores.max(axis=1)
        return ranks, best, highest

    @property
    def predicted(self) -> np.ndarray:
        """Returns the rank of the second text of each pair, from 1: int64 [N]."""
        return self._best[0]

    def values(self) -> list[float]:
        return rounded(self.outputs[:, 0])

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        highest = self._best[2]
        found = np.concatenate([self.outputs[:, 0], highest[np.isfinite(highest)]])
        return bool(np.ptp(found) < _SAME)

    def errors(self) -> Iterator[Sequence[Any]]:
        ranks, best, highest = self._best
        for i in np.argsort(-ranks, kind="stable"):
            if ranks[i] > 1:
                shown = (ranks[i], f"{self.outputs[i, 0]:.4f}", f"{highest[i]:.4f}")
                yield self.examples.lines[i], *shown, *self.texts(i), self.examples.texts_b[best[i]]

    def plot(self, path: str) -> None:
        shares = np.clip(self.shares(), 0, 1)
        error_analysis.plot_confidence(path, shares, self._best[0] == 1, "pairs", "cosine")


@dataclasses.dataclass(frozen=True)
class TokenVectors:
    """The vectors of the tokens of rows, which have different numbers of tokens.

    Attributes:
        values: float [total, H], of length 1.
        offsets: int64 [N, 2], where those of each row begin and end.
        counted: bool [total], the tokens that count in a score.
    """

    values: np.ndarray
    offsets: np.ndarray
    counted: np.ndarray

    def padded(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors of some rows, float32 [n, L, H], and which of them count, bool [n, L]."""
        chosen = self.offsets[rows]
        # One length for all calls, as each other one is compiled for.
        longest = -(-int(np.max(self.offsets[:, 1] - self.offsets[:, 0], initial=1)) // _MULTIPLE) * _MULTIPLE
        vectors = np.zeros((len(chosen), longest, self.values.shape[-1]), np.float32)
        counted = np.zeros(vectors.shape[:2], bool)
        for row, (begin, end) in enumerate(chosen):
            vectors[row, : end - begin] = self.values[begin:end]
            counted[row, : end - begin] = self.counted[begin:end]
        return vectors, counted


_scores = jax.jit(late_interaction.max_sims)
_scores_of_pairs = jax.jit(jax.vmap(late_interaction.max_sim))


@dataclasses.dataclass
class LateInteractionPredictions(RetrievalPredictions):
    """The rank of the second text of each pair among those of all pairs, by its score with the first one.

    Attributes:
        outputs: float32 [N, 1], the scores of the pairs; see `objectives.embedding.late_interaction.max_sim`.
        queries: float [N, Q, H], the vectors of the tokens of first texts.
        documents: those of second texts.
    """

    queries: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))
    documents: TokenVectors | None = None

    error_columns: ClassVar[Sequence[str]] = (
        *("line", "rank", "score", "best score", "text_a", "text_b", "best text"),
    )

    @classmethod
    def of(cls, examples: Any, queries: np.ndarray, documents: TokenVectors) -> LateInteractionPredictions:
        """Returns the predictions for pairs, from their vectors."""
        scores = np.empty((len(queries), 1), np.float32)
        for begin in range(0, len(queries), _DOCUMENTS):
            part = slice(begin, begin + _DOCUMENTS)
            of_part = queries[part].astype(np.float32)
            scores[part, 0] = _scores_of_pairs(of_part, *documents.padded(part))
        return cls(examples, scores, np.empty(0), queries=queries, documents=documents)

    def scores(self, anchors: slice, candidates: np.ndarray) -> np.ndarray:
        """Returns float32 [anchors, candidates], the scores of first texts with second ones of pairs."""
        assert self.documents is not None
        queries = self.queries[anchors].astype(np.float32)
        parts = (candidates[i : i + _DOCUMENTS] for i in range(0, len(candidates), _DOCUMENTS))
        return np.concatenate(
            [np.asarray(_scores(queries, *self.documents.padded(part))) for part in parts], axis=1
        )

    def shares(self) -> np.ndarray:
        """Returns the scores of the pairs as shares of the largest score there can be: float32 [N]."""
        return self.outputs[:, 0] / self.queries.shape[1]
