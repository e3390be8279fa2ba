"""Predictions of sentence embeddings: ranks, and models whose vectors say nothing."""

import numpy as np
import pytest

from bert_jax.tasks.embedding.predictions import RetrievalPredictions
from bert_jax.tasks.table import Examples


def examples_of(first, second, labels=()):
    return Examples("x.tsv", list(map(str, range(len(first)))), first, second, list(labels))


def test_ranks_are_those_of_sorting():
    rng = np.random.default_rng(0)
    first = [f"q{number}" for number in rng.integers(0, 30, 60)]
    second = [f"a{number}" for number in rng.integers(0, 40, 60)]
    of_first = {text: rng.normal(size=8) for text in first}
    of_second = {text: rng.normal(size=8) for text in second}
    vectors = np.array([[of_first[a], of_second[b]] for a, b in zip(first, second, strict=True)])
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    vectors = vectors.astype(np.float32)
    found = RetrievalPredictions(
        examples_of(first, second),
        np.sum(vectors[:, 0] * vectors[:, 1], -1)[:, None],
        np.empty(0),
        vectors=vectors,
    )
    for row, (a, b) in enumerate(zip(first, second, strict=True)):
        others = {y for x, y in zip(first, second, strict=True) if x == a} - {b}
        score = {
            y: float(of_first[a] @ of_second[y] / np.linalg.norm(of_second[y])) for y in {*second} - others
        }
        ordered = sorted(score, key=lambda text: -score[text])
        assert found.predicted[row] == 1 + ordered.index(b)


@pytest.mark.parametrize("collapsed", [slice(0, 2), slice(1, 2)], ids=["all", "second"])
def test_a_model_for_which_texts_are_alike_finds_nothing(collapsed):
    vectors = np.random.default_rng(0).normal(size=(50, 2, 8)).astype(np.float32)
    vectors[:, collapsed] = 1
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    texts = [[f"{side}{number}" for number in range(50)] for side in "ab"]
    scores = np.sum(vectors[:, 0] * vectors[:, 1], -1)[:, None]
    found = RetrievalPredictions(examples_of(*texts), scores, np.empty(0), vectors=vectors)
    assert set(found.predicted) == {50}
    vectors[:] = np.nan
    found = RetrievalPredictions(examples_of(*texts), scores, np.empty(0), vectors=vectors)
    assert set(found.predicted) == {50}
