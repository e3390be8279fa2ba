"""The norm at the start of half a layer, as a kernel, beside the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import layer_norm, pallas_norm

EPSILON = 1e-5
NORMS = {"layernorm": layer_norm.layer_norm, "rmsnorm": layer_norm.rms_norm}


def inputs(rows=3, length=256, features=128, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(rows), 5)
    x, *weights = (1 + jax.random.normal(key, (rows, length, features), dtype) for key in keys[:3])
    scale, offset = (jax.random.normal(key, (features,)) for key in keys[3:])
    return (x, scale, offset), weights


def plain(kind, x, scale, offset):
    return NORMS[kind](x, scale, offset, EPSILON), x


def fused(kind, x, scale, offset):
    return pallas_norm.norm_beside(kind, x, scale, offset, EPSILON)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("has_offset", [True, False])
def test_values_and_gradients_are_those_of_the_plain_formula(kind, has_offset):
    given, weights = inputs()
    given = given if has_offset else (*given[:2], None)

    def value_and_gradients(function):
        def loss(*given):
            out = function(kind, *given)
            return sum(jnp.vdot(weight, x) for weight, x in zip(weights, out, strict=True)), out

        (_, out), grads = jax.value_and_grad(loss, argnums=range(2 + has_offset), has_aux=True)(*given)
        return *out, *grads

    found, expected = value_and_gradients(fused), value_and_gradients(plain)
    np.testing.assert_array_equal(found[1], given[0])
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("kind", NORMS)
def test_bfloat16_is_as_close_to_float32_as_the_plain_formula(kind):
    given, _ = inputs()
    exact = plain(kind, *given)[0]
    half = given[0].astype(jnp.bfloat16)
    errors = [
        float(jnp.abs(function(kind, half, *given[1:])[0].astype(jnp.float32) - exact).max())
        for function in (fused, plain)
    ]
    assert errors[0] < 1.5 * errors[1]


def test_what_there_is_no_kernel_for_is_refused():
    for shape in ((96, 128), (128, 312), (128, 2048)):
        given, _ = inputs(1, *shape)
        with pytest.raises(UserError, match=r"residual=pallas needs .*; use residual=auto, or xla"):
            fused("layernorm", *given)
