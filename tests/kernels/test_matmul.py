import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import gradients

from bert_jax.kernels import matmul, platform

SIZES = st.integers(1, 40)
SPECS = [
    "bqnd,bknd->bnqk",
    "bnqk,bknd->bqnd",
    "bcqnd,bcknd->bncqk",
    "bncqk,bcknd->bcqnd",
]


def drawn(seed, *shape):
    """Returns an array whose elements bfloat16 has."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.bfloat16)


def assert_close(got, expected):
    """Asserts that the sums are as exact as bfloat16."""
    scale = np.abs(expected).max() if expected.size else 0
    np.testing.assert_allclose(np.float64(got), expected, rtol=2**-8, atol=2**-8 * scale)


@pytest.mark.long
@hypothesis.given(SIZES, SIZES, SIZES, st.sampled_from([0, 1]), st.sampled_from([0, 1]))
@hypothesis.settings(max_examples=20, deadline=None, derandomize=True)
def test_products(rows, inner, columns, first, second):
    left = drawn(0, *((rows, inner) if first else (inner, rows)))
    right = drawn(1, *((columns, inner) if second else (inner, columns)))
    expected = np.tensordot(np.float64(left), np.float64(right), ((first,), (second,)))
    for dtype in (None, "bfloat16", "float32"):
        got = jax.jit(lambda a, b, dtype=dtype: matmul.matmul(a, b, (first, second), dtype))(left, right)
        assert got.dtype == (dtype or "bfloat16")
        assert_close(got, expected)


@pytest.mark.long
@pytest.mark.parametrize("spec", SPECS)
@hypothesis.given(st.lists(st.integers(1, 20), min_size=6, max_size=6))
@hypothesis.example([2, 2, 1, 2, 18, 3])  # XLA aborted on its forms
@hypothesis.example([2, 1, 8, 2, 2, 4])  # and could not run these
@hypothesis.settings(max_examples=6, deadline=None, derandomize=True)
def test_einsum_and_its_gradients(spec, sizes):
    sizes = dict(zip("bcqknd", sizes, strict=True))
    names = re.split(",|->", spec)
    left, right, cotangent = (drawn(i, *map(sizes.get, each)) for i, each in enumerate(names))

    wide = (x.astype(jnp.float32) for x in (left, right))
    exact = gradients.with_gradients(functools.partial(jnp.einsum, spec), wide, cotangent.astype(jnp.float32))
    for dtype in ("bfloat16", "float32"):
        form = functools.partial(matmul.einsum, spec, dtype=dtype)
        got = gradients.with_gradients(form, (left, right), cotangent.astype(dtype))
        assert [x.dtype for x in got] == [dtype, "bfloat16", "bfloat16"]
        for one, expected in zip(got, exact, strict=True):
            assert_close(one, np.float64(expected))


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("name", ["cpu", "gpu", "tpu"])
def test_values_and_gradients_are_those_of_one_product(monkeypatch, name, has_bias):
    monkeypatch.setattr(platform, "target_platform", lambda: name)
    keys = jax.random.split(jax.random.key(0), 5)
    x, kernel = jax.random.normal(keys[0], (6, 5)), jax.random.normal(keys[1], (5, 2, 7))
    bias = jax.random.normal(keys[2], (2, 7)) if has_bias else None
    weights = [jax.random.normal(key, (2, 3, 7)) for key in keys[3:]]

    def plain(x, kernel, bias):
        y = jnp.einsum("ni,iho->hno", x, kernel)
        y = y if bias is None else y + bias[:, None]
        return y[0].reshape(2, 3, 7), y[1].reshape(2, 3, 7)

    def halves(x, kernel, bias):
        return matmul.dense_halves(x, kernel, bias, (2, 3))

    gradients.assert_same(halves, plain, (x, kernel, bias), tuple(weights))
