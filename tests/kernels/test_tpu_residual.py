"""The kernel of the norm at the end of a sublayer, interpreted, compared with the plain formula."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import layer_norm
from bert_jax.kernels.dropout import dropout, dropout_rows
from bert_jax.kernels.tpu.residual import residual_norm
from bert_jax.parallel import sharding

OPTIONS = dict(epsilon=1e-5, key=jax.random.key(7))


def inputs(rows):
    keys = jax.random.split(jax.random.key(rows), 6)
    x, h, weights = (1 + jax.random.normal(key, (rows, 256, 128)) for key in keys[:3])
    bias, scale, offset = (jax.random.normal(key, (128,)) for key in keys[3:])
    return (x, h, bias, scale, offset), weights


def plain(x, h, bias, scale, offset, *, epsilon, key, rate):
    return layer_norm.layer_norm(x + dropout(h + bias, key, rate), scale, offset, epsilon)


def value_and_gradients(function, weights, arrays):
    def loss(*arrays):
        result = function(*arrays)
        return jnp.vdot(weights, result), result

    (_, result), gradients = jax.jit(jax.value_and_grad(loss, range(len(arrays)), has_aux=True))(*arrays)
    return result, *gradients


def assert_close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_kernel_and_its_gradients_are_those_of_the_plain_formula(rate):
    arrays, weights = inputs(3)
    fused, formula = (functools.partial(form, **OPTIONS, rate=rate) for form in (residual_norm, plain))
    assert_close(value_and_gradients(fused, weights, arrays), value_and_gradients(formula, weights, arrays))


def test_rows_of_a_part_have_the_dropout_of_the_whole_batch():
    (x, h, *parameters), _ = inputs(3)
    whole = residual_norm(x, h, *parameters, **OPTIONS, rate=0.5)
    with dropout_rows(np.array([2])):
        part = residual_norm(x[2:], h[2:], *parameters, **OPTIONS, rate=0.5)
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)


@pytest.mark.long
def test_devices_that_split_the_rows_compute_the_same():
    arrays, weights = inputs(4)
    form = functools.partial(residual_norm, **OPTIONS, rate=0.3)
    expected = value_and_gradients(form, weights, arrays)
    with sharding.on_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
        assert_close(value_and_gradients(form, weights, arrays), expected)
