"""The kernels of the norm of a sublayer, interpreted, beside the plain formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import layer_norm
from bert_jax.kernels.dropout import dropout, row_ids
from bert_jax.kernels.tpu import residual
from bert_jax.parallel import sharding

EPSILON = 1e-5
KEY = jax.random.key(7)
NORMS = {"layernorm": layer_norm.layer_norm, "rmsnorm": layer_norm.rms_norm}
SHAPE = (256, 128)


def inputs(rows=3, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(rows), 7)
    shape = (rows, *SHAPE)
    x, h, *weights = (1 + jax.random.normal(key, shape, dtype) for key in keys[:4])
    bias, scale, offset = (jax.random.normal(key, shape[2:]) for key in keys[4:])
    return x, h, bias, scale, offset, weights


def plain_after(x, h, bias, scale, offset, rate, key=KEY):
    return layer_norm.layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, EPSILON)


def after(*arrays, rate, key=KEY):
    return residual.residual_norm(*arrays, epsilon=EPSILON, rate=rate, key=key)


def plain_before(kind, x, scale, offset):
    return NORMS[kind](x, scale, offset, EPSILON), x


def before(kind, x, scale, offset):
    return residual.norm_and_input(kind, x, scale, offset, EPSILON)


def value_and_gradients(function, weights, *arrays):
    """Results, and the gradients of a weighted sum of all of them."""

    @jax.jit
    def run(*arrays):
        def loss(*arrays):
            results = jax.tree.leaves(function(*arrays))
            return sum(jnp.vdot(*both) for both in zip(weights, results, strict=False)), results

        (_, results), gradients = jax.value_and_grad(loss, range(len(arrays)), has_aux=True)(*arrays)
        return *results, *gradients

    return run(*arrays)


def assert_close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_the_end_of_a_sublayer_and_its_gradients_are_those_of_the_plain_formula(rate):
    *arrays, weights = inputs()
    found = value_and_gradients(functools.partial(after, rate=rate), weights, *arrays)
    assert_close(found, value_and_gradients(functools.partial(plain_after, rate=rate), weights, *arrays))


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("has_offset", [True, False])
def test_the_start_of_a_sublayer_and_its_gradients_are_those_of_the_plain_formula(kind, has_offset):
    x, _, _, scale, offset, weights = inputs()
    arrays = (x, scale, offset)[: 2 + has_offset]

    def with_offset(form, x, scale, offset=None):
        return form(x, scale, offset)

    fused, plain = functools.partial(before, kind), functools.partial(plain_before, kind)
    found = value_and_gradients(functools.partial(with_offset, fused), weights, *arrays)
    np.testing.assert_array_equal(found[1], x)
    assert_close(found, value_and_gradients(functools.partial(with_offset, plain), weights, *arrays))


def test_rows_of_a_part_have_the_dropout_of_the_whole_batch():
    x, h, *parameters, _ = inputs()
    whole = after(x, h, *parameters, rate=0.5)
    with row_ids(np.array([2])):
        part = after(x[2:], h[2:], *parameters, rate=0.5)
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)


@pytest.mark.long
def test_devices_that_split_the_rows_compute_the_same():
    *arrays, weights = inputs(rows=4)
    form = functools.partial(after, rate=0.3)
    expected = value_and_gradients(form, weights, *arrays)
    with sharding.on_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
        assert_close(value_and_gradients(form, weights, *arrays), expected)
