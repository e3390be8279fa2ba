import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.kernels import pallas_residual
from bert_jax.kernels.dropout import dropout, row_ids
from bert_jax.kernels.layer_norm import layer_norm

EPSILON = 1e-12


def inputs(rows=3, length=256, features=128, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(rows), 6)
    x, h, weights = (jax.random.normal(key, (rows, length, features), dtype) for key in keys[:3])
    bias, scale, offset = (jax.random.normal(key, (features,)) for key in keys[3:])
    return (x, h, bias, scale, offset), weights


def plain(x, h, bias, scale, offset, rate, key):
    return layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, EPSILON)


def fused(x, h, bias, scale, offset, rate, key):
    return pallas_residual.residual_norm(x, h, bias, scale, offset, epsilon=EPSILON, rate=rate, key=key)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_values_and_gradients_are_those_of_the_plain_formula(rate):
    given, weights = inputs()
    key = jax.random.key(7)

    def value_and_gradients(function):
        def loss(*given):
            out = function(*given, rate, key)
            return jnp.vdot(weights, out), out

        (_, out), grads = jax.value_and_grad(loss, argnums=range(5), has_aux=True)(*given)
        return out, *grads

    for mine, theirs in zip(value_and_gradients(fused), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


def test_without_a_key_nothing_is_dropped():
    given, _ = inputs(rows=1)
    np.testing.assert_array_equal(fused(*given, 0.5, None), fused(*given, 0.0, jax.random.key(0)))


def test_bfloat16_is_as_close_to_float32_as_the_plain_formula():
    given, _ = inputs()
    key = jax.random.key(1)
    exact = plain(*given, 0.1, key)
    halves = [x.astype(jnp.bfloat16) for x in given[:2]]
    errors = [
        float(jnp.abs(function(*halves, *given[2:], 0.1, key).astype(jnp.float32) - exact).max())
        for function in (fused, plain)
    ]
    assert errors[0] < 1.5 * errors[1]


def test_what_there_is_no_kernel_for_is_refused():
    for shape in ((96, 128), (128, 312), (128, 2048)):
        given, _ = inputs(1, *shape)
        with pytest.raises(UserError, match=r"residual=pallas needs .*; use residual=auto, or xla"):
            fused(*given, 0.0, None)


def test_rows_of_a_part_have_the_dropout_of_the_whole_batch():
    (x, h, *parameters), _ = inputs()
    whole = fused(x, h, *parameters, 0.5, jax.random.key(7))
    with row_ids(np.array([2])):
        np.testing.assert_allclose(
            fused(x[2:], h[2:], *parameters, 0.5, jax.random.key(7)), whole[2:], atol=1e-6
        )
