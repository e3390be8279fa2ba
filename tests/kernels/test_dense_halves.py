"""The two halves of a gated block, as each platform computes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import platform
from bert_jax.kernels.dense import dense_halves


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
        return dense_halves(x, kernel, bias, (2, 3))

    given = x, kernel, bias
    found, pull = jax.vjp(halves, *given)
    expected, expected_pull = jax.vjp(plain, *given)
    mine, theirs = pull(tuple(weights)), expected_pull(tuple(weights))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        (found, mine),
        (expected, theirs),
    )
