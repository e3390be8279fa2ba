"""Hard negatives: texts that a model finds close to an anchor, and that are no positives of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bert_jax.inference.search.nearest import nearest

_CHUNK = 512  # anchors that are searched for at a time

Scorer = Callable[[Sequence[tuple[str, str]]], np.ndarray]  # of pairs of texts


@dataclasses.dataclass(frozen=True)
class Mining:
    """How negatives are chosen.

    Attributes:
        count: number of negatives of each anchor.
        skip: number of nearest candidates that are passed over.
        depth: number of nearest candidates that are looked at, those that are passed over included.
        share: largest cosine of a negative, as a share of that of the positive (de Souza P. Moreira et al.
            2024, who found .95 to be best), and as far below it if that is negative; for searches without a
            scorer.
        margin: smallest difference of the scores of the positive and of a negative, with a scorer.
    """

    count: int = 4
    skip: int = 0
    depth: int = 100
    share: float = 0.95
    margin: float = 0.1


def mine(
    anchors: Sequence[str],
    positives: Sequence[str],
    candidates: Sequence[str],
    vectors: tuple[np.ndarray, np.ndarray, np.ndarray],
    options: Mining,
    scorer: Scorer | None = None,
) -> Iterator[list[str]]:
    """Yields the negatives of each anchor, the nearest first; fewer than `count` if there are no more.

    A text that is equal to the anchor, or to a positive of an equal anchor, is no negative.

    Args:
        anchors: N texts.
        positives: N texts, the positive of each anchor.
        candidates: C different texts.
        vectors: float32 [N, H], [N, H] and [C, H], of length 1, of these.
        options: how negatives are chosen.
        scorer: a model that reads both texts of a pair; None to use the cosines.
    """
    of_anchors, of_positives, of_candidates = vectors
    known: dict[str, set[str]] = {}
    for anchor, positive in zip(anchors, positives, strict=True):
        known.setdefault(anchor, {anchor}).add(positive)
    for begin in range(0, len(anchors), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        numbers, cosines = nearest(of_anchors[part], of_candidates, options.depth)
        found: list[list[tuple[str, float]]] = []
        for anchor, row, values in zip(anchors[part], numbers.tolist(), cosines, strict=True):
            near = zip(row[options.skip :], values[options.skip :], strict=True)
            found.append([(candidates[i], value) for i, value in near if candidates[i] not in known[anchor]])
        if scorer is None:
            own = np.sum(of_anchors[part] * of_positives[part], axis=-1)
            limits = own - (1 - options.share) * np.abs(own)
        else:
            found = _scored(anchors[part], found, scorer)
            pairs = list(zip(anchors[part], positives[part], strict=True))
            limits = np.asarray(scorer(pairs)) - options.margin
        for near, limit in zip(found, limits, strict=True):
            yield [text for text, score in near if score <= limit][: options.count]


def _scored(
    anchors: Sequence[str], found: Sequence[Sequence[tuple[str, float]]], scorer: Scorer
) -> list[list[tuple[str, float]]]:
    pairs = [(anchor, text) for anchor, near in zip(anchors, found, strict=True) for text, _ in near]
    scores = iter(np.asarray(scorer(pairs)).tolist())
    return [[(text, next(scores)) for text, _ in near] for near in found]
