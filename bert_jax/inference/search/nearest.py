"""The nearest vectors by inner product, by comparing with all of them."""

from __future__ import annotations

import numpy as np

_CHUNK = 1 << 16  # vectors that are compared at a time
_SCORES = 1 << 24  # inner products in memory at a time, about


def nearest(queries: np.ndarray, vectors: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the vectors with the largest inner products, the largest first; equal ones by number.

    Args:
        queries: float [Q, H].
        vectors: float [N, H], in memory or mapped from a file.
        most: number of vectors to find; all, if there are fewer.

    Returns:
        Numbers int64 [Q, k] and inner products float32 [Q, k], where k is the smaller of `most` and N.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    count = min(most, len(vectors))
    numbers = np.zeros((len(queries), count), np.int64)
    scores = np.full((len(queries), count), -np.inf, np.float32)
    rows = max(1, _SCORES // max(1, min(_CHUNK, len(vectors))))
    for begin in range(0, len(queries), rows):
        part = slice(begin, begin + rows)
        numbers[part], scores[part] = _nearest(queries[part], vectors, count)
    return numbers, scores


def _nearest(queries, vectors, count):
    numbers, scores = np.zeros((len(queries), 0), np.int64), np.zeros((len(queries), 0), np.float32)
    for begin in range(0, len(vectors), _CHUNK):
        found = queries @ np.asarray(vectors[begin : begin + _CHUNK], np.float32).T
        chosen = np.broadcast_to(np.arange(found.shape[1]), found.shape)
        if found.shape[1] > count:
            chosen = np.argpartition(-found, count - 1, axis=1)[:, :count]
            _take_first_of_equals(found, chosen)
            found = np.take_along_axis(found, chosen, axis=1)
        numbers = np.concatenate([numbers, chosen + begin], axis=1)
        scores = np.concatenate([scores, found], axis=1)
        order = np.lexsort((numbers, -scores), axis=1)[:, :count]
        numbers, scores = (np.take_along_axis(x, order, axis=1) for x in (numbers, scores))
    return numbers, scores


def _take_first_of_equals(found, chosen):
    """Chooses the first ones of those that equal the smallest chosen one, where some were left out."""
    least = np.take_along_axis(found, chosen, axis=1).min(axis=1, keepdims=True, initial=np.inf)
    count = chosen.shape[1]
    for row in np.flatnonzero(np.count_nonzero(found >= least, axis=1) > count):
        larger = np.flatnonzero(found[row] > least[row])
        equal = np.flatnonzero(found[row] == least[row])
        chosen[row] = [*larger, *equal[: count - len(larger)]]
