import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import dense, layer_norm
from bert_jax.kernels import platform as platform_module
from bert_jax.models import layers


@pytest.fixture(params=["cpu", "gpu", "tpu"])
def platform(request, monkeypatch):
    """Has the layers compute as they do there, on the machine at hand."""
    monkeypatch.setattr(platform_module, "target_platform", lambda: request.param)


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def test_gelu_in_bfloat16_keeps_its_values_below_0():
    x = jnp.asarray(np.linspace(-6, 3, 400), jnp.bfloat16)
    exact = np.asarray(x, np.float64)
    cdf = 0.5 * np.array([math.erfc(-each / math.sqrt(2)) for each in exact])
    density = np.exp(-0.5 * exact**2) / math.sqrt(2 * math.pi)
    value, pull = jax.vjp(layers.gelu, x)
    (slope,) = pull(jnp.ones_like(x))
    for found, expected in ((value, exact * cdf), (slope, cdf + exact * density)):
        assert found.dtype == jnp.bfloat16
        # Two roundings; and those of float32, in which 1 + erf(x) has an error of 1e-7.
        np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=2**-7, atol=6e-7)


def assert_same_gradients(mine, theirs, args, atol=2e-5):
    weights = normal(*jax.eval_shape(mine, *args).shape, seed=9)
    np.testing.assert_allclose(mine(*args), theirs(*args), atol=atol)
    numbers = tuple(range(len(args)))
    for a, b in zip(
        *(jax.grad(lambda *args, f=f: jnp.sum(f(*args) * weights), numbers)(*args) for f in (mine, theirs)),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("sizes", [(5, 7), (7, 5)])
def test_dense(sizes, platform):
    args = normal(11, sizes[0]), normal(*sizes, seed=1), normal(sizes[1], seed=2)
    assert_same_gradients(dense.dense, lambda x, w, b: x @ w + b, args)
    args = args[0], args[1].T, args[2]
    assert_same_gradients(lambda x, w, b: dense.dense(x, w, b, True), lambda x, w, b: x @ w.T + b, args)


def test_dense_of_bfloat16_accumulates_gradients_in_float32(platform):
    x, kernel, bias = normal(4096, 3).astype(jnp.bfloat16), normal(3, 5, seed=1), jnp.zeros(5)
    _, vjp = jax.vjp(dense.dense, x, kernel, bias)
    dx, dkernel, dbias = vjp(jnp.ones((4096, 5), jnp.bfloat16))
    assert (dx.dtype, dkernel.dtype, dbias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    assert np.array_equal(dbias, np.full(5, 4096.0))  # bfloat16 stops counting at 256


def test_layer_norm_against_flax(platform):
    x, scale, bias = 3 + normal(6, 4, 10), 1 + normal(10, seed=1), normal(10, seed=2)
    reference = nn.LayerNorm(epsilon=1e-12, use_fast_variance=False)
    assert_same_gradients(
        lambda x, s, b: layer_norm.layer_norm(x, s, b, 1e-12),
        lambda x, s, b: reference.apply({"params": {"scale": s, "bias": b}}, x),
        (x, scale, bias),
    )


def test_layer_norm_statistics_are_float32_and_in_two_passes(platform):
    x = (1000 + normal(2, 64)).astype(jnp.float32)  # E[x2] - E[x]2 would lose all digits of the variance
    out = layer_norm.layer_norm(x, jnp.ones(64), jnp.zeros(64), 1e-12)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(out, exact, atol=2e-4)


def test_layer_norm_of_bfloat16_is_as_good_as_its_numbers(platform):
    x = (30 + normal(64, 768)).astype(jnp.bfloat16)
    normalized, _ = layer_norm._normalize(x, 1e-12)
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean(-1, keepdims=True)) / exact.std(-1, keepdims=True)
    np.testing.assert_allclose(normalized, exact, atol=2e-3)  # neighbors of 30 are 0.125 apart


def test_gelu_exact_and_tanh():
    x = jnp.linspace(-6, 6, 101)
    assert_same_gradients(layers.gelu, lambda x: jax.nn.gelu(x, approximate=False), (x,), atol=2e-6)
    difference = np.abs(layers.ACTIVATIONS["gelu"](x) - layers.ACTIVATIONS["gelu_tanh"](x)).max()
    assert 1e-4 < difference < 1e-3


def test_initial_distribution():
    kernel = np.asarray(layers.kernel_init(0.02)(jax.random.key(0), (400, 400)))
    assert np.abs(kernel).max() <= 0.04
    assert abs(kernel.std() / (0.02 * 0.8796) - 1) < 0.02  # std of a normal cut at two sigma
