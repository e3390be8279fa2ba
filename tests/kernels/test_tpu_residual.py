"""The kernel of the norm at the end of a sublayer, interpreted, compared with the plain formula."""

import functools

import jax
import numpy as np
import pytest
from support import gradients

from bert_jax.kernels import layer_norm
from bert_jax.kernels.dropout import dropout, dropout_rows
from bert_jax.kernels.tpu.residual import residual_norm

OPTIONS = dict(epsilon=1e-5, key=jax.random.key(7))


def inputs(rows):
    keys = jax.random.split(jax.random.key(rows), 6)
    x, h, weights = (1 + jax.random.normal(key, (rows, 256, 128)) for key in keys[:3])
    bias, scale, offset = (jax.random.normal(key, (128,)) for key in keys[3:])
    return (x, h, bias, scale, offset), weights


def plain(x, h, bias, scale, offset, *, epsilon, key, rate):
    return layer_norm.layer_norm(x + dropout(h + bias, key, rate), scale, offset, epsilon)


close = dict(rtol=2e-5, atol=2e-5, scaled=True)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_the_kernel_and_its_gradients_are_those_of_the_plain_formula(rate):
    forms = (functools.partial(form, **OPTIONS, rate=rate) for form in (residual_norm, plain))
    gradients.assert_same(*forms, *inputs(3), **close)


def test_rows_of_a_part_have_the_dropout_of_the_whole_batch():
    (x, h, *parameters), _ = inputs(3)
    whole = residual_norm(x, h, *parameters, **OPTIONS, rate=0.5)
    with dropout_rows(np.array([2])):
        part = residual_norm(x[2:], h[2:], *parameters, **OPTIONS, rate=0.5)
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)
