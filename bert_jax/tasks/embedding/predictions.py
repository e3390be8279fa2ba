"""Predictions for pairs of texts with vectors: their similarity, or the rank of the second text."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.objectives.embedding import late_interaction
from bert_jax.tasks.predictions import NumberPredictions, TablePredictions, rounded

_CHUNK = 1024  # anchors whose scores with all texts are computed at a time
_SAME = 1e-3  # difference of scores up to which they are the same
_ROUNDING = 2e-6  # of float32 scores, relative to those above 1
_DOCUMENTS = 256  # texts whose vectors of tokens are padded to one length at a time
_MULTIPLE = 32  # of tokens, that this length is rounded up to


@dataclasses.dataclass
class SimilarityPredictions(NumberPredictions):
    """The cosine of both texts of each pair; `targets` are similarities on any scale."""

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        return bool(np.ptp(self.outputs) < _SAME)

    def mistakes(self) -> None:
        """Returns None: cosines and labels have different scales."""


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

    def scores(self, anchors: slice, candidates: np.ndarray) -> np.ndarray:
        """Returns float32 [anchors, candidates], the cosines of first texts with second ones of pairs."""
        return self.vectors[anchors, 0] @ self.vectors[candidates, 1].T

    @functools.cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        """The rank of each second text, int64 [N], and the highest score of another one, float32 [N]."""
        first, second = self.examples.texts_a, self.examples.texts_b
        (_, anchors), (rows, numbers) = (_numbered(texts) for texts in (first, second))
        partners: dict[int, list[int]] = {}
        for anchor, number in zip(anchors.tolist(), numbers.tolist(), strict=True):
            partners.setdefault(anchor, []).append(number)
        ranks, highest = (np.empty(len(first), kind) for kind in (np.int64, np.float32))
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
            highest[part] = scores.max(axis=1)
        return ranks, highest

    @property
    def predicted(self) -> np.ndarray:
        """Returns the rank of the second text of each pair, from 1: int64 [N]."""
        return self._found[0]

    def values(self) -> list[float]:
        return rounded(self.outputs[:, 0])

    def is_degenerate(self, scores: Mapping[str, float]) -> bool:
        highest = self._found[1]
        found = np.concatenate([self.outputs[:, 0], highest[np.isfinite(highest)]])
        return bool(np.ptp(found) < _SAME)


@dataclasses.dataclass(frozen=True)
class TokenVectors:
    """The vectors of the tokens of rows.

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
