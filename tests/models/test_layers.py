import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import gradients

from bert_jax.kernels import layer_norm, matmul
from bert_jax.kernels import platform as platform_module
from bert_jax.models import layers


@pytest.fixture(params=["cpu", "gpu", "tpu"])
def platform(request, monkeypatch):
    """Makes the layers use the implementation for a platform, on this machine."""
    monkeypatch.setattr(platform_module, "target_platform", lambda: request.param)


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def in_float64(name, x):
    """Returns the value and the derivative of an activation x * gate(x)."""
    if name == "gelu":
        gate = 0.5 * np.array([math.erfc(-each / math.sqrt(2)) for each in x])
        return x * gate, gate + x * np.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    scale = 2 * math.sqrt(2 / math.pi)
    inner, slope = (
        (x, 1) if name == "silu" else (scale * (x + 0.044715 * x**3), scale * (1 + 0.134145 * x**2))
    )
    gate = 1 / (1 + np.exp(-inner))
    return x * gate, gate + x * gate * (1 - gate) * slope


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("dtype, rtol, atol", [("bfloat16", 2**-7, 6e-7), ("float32", 1e-7, 2e-6)])
def test_activations_keep_their_values_below_0(name, dtype, rtol, atol):
    x = jnp.asarray(np.linspace(-6, 6, 400), dtype)
    value, pull = jax.vjp(layers.ACTIVATIONS[name], x)
    (slope,) = pull(jnp.ones_like(x))
    for found, expected in zip((value, slope), in_float64(name, np.asarray(x, np.float64)), strict=True):
        assert found.dtype == dtype
        # Two roundings, and the float32 errors, such as 1e-7 for 1 + erf(x).
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=rtol, atol=atol)


def test_dense_of_bfloat16_accumulates_gradients_in_float32(platform):
    x, kernel, bias = normal(4096, 3).astype(jnp.bfloat16), normal(3, 5, seed=1), jnp.zeros(5)
    _, vjp = jax.vjp(matmul.dense, x, kernel, bias)
    dx, dkernel, dbias = vjp(jnp.ones((4096, 5), jnp.bfloat16))
    assert (dx.dtype, dkernel.dtype, dbias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    assert np.array_equal(dbias, np.full(5, 4096.0))  # bfloat16 stops counting at 256


def test_layer_norm_against_flax(platform):
    x, scale, bias = 3 + normal(6, 4, 10), 1 + normal(10, seed=1), normal(10, seed=2)
    reference = nn.LayerNorm(epsilon=1e-12, use_fast_variance=False)
    gradients.assert_same(
        lambda *of: layer_norm.layer_norm(*of, 1e-12),
        lambda x, s, b: reference.apply({"params": {"scale": s, "bias": b}}, x),
        (x, scale, bias), normal(*x.shape, seed=9), atol=2e-5,
    )  # fmt: skip


def test_layer_norm_statistics_are_float32_and_in_two_passes(platform):
    x = (1000 + normal(2, 64)).astype(jnp.float32)  # E[x2] - E[x]2 would lose all digits of the variance
    out = layer_norm.layer_norm(x, jnp.ones(64), jnp.zeros(64), 1e-12)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(out, exact, atol=2e-4)
