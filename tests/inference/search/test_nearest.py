"""The nearest vectors are those of a sort of all inner products."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.inference.search import nearest as module
from bert_jax.inference.search.nearest import nearest


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 60), queries=st.integers(0, 5), most=st.integers(1, 70), chunk=st.integers(1, 20))
def test_the_largest_products_in_their_order(count, queries, most, chunk):
    rng = np.random.default_rng(count * 71 + queries)
    vectors = rng.normal(size=(count, 4)).astype(np.float32)
    asked = rng.normal(size=(queries, 4)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        patch.setattr(module, "_SCORES", 40)
        numbers, scores = nearest(asked, vectors, most)
    products = asked @ vectors.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :most]
    np.testing.assert_allclose(scores, np.take_along_axis(products, expected, axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(numbers, expected)


@pytest.mark.parametrize("most", [1, 5, 12, 60])
@pytest.mark.parametrize("chunk", [7, 1000])
def test_equal_vectors_come_by_number(monkeypatch, most, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    vectors = np.tile(np.array([[0.5, 0.0]], np.float32), (600, 1))
    vectors[[*range(0, 50, 7), *range(550, 600, 7)]] = 1
    numbers, scores = nearest(np.ones((2, 2)), vectors, most)
    expected = np.argsort(-vectors.sum(axis=1), kind="stable")[:most]
    np.testing.assert_array_equal(numbers, [expected] * 2)
    np.testing.assert_array_equal(scores, [vectors.sum(axis=1)[expected]] * 2)
