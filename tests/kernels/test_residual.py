"""The kernels of the norm of half a layer, interpreted, beside the plain formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import lowering, triton_programs

from bert_jax.errors import UserError
from bert_jax.kernels import layer_norm, platform, residual
from bert_jax.kernels.dropout import dropout, kernel_words, row_ids
from bert_jax.kernels.gpu import residual as gpu_residual
from bert_jax.parallel import sharding

EPSILON = 1e-5
KEY = jax.random.key(7)
NORMS = {"layernorm": layer_norm.layer_norm, "rmsnorm": layer_norm.rms_norm}
SHAPES = {"pallas": (256, 128), "triton": (48, 384)}
on_both = pytest.mark.parametrize("name", SHAPES)


def inputs(name, rows=3, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(rows), 7)
    shape = (rows, *SHAPES[name])
    x, h, *weights = (1 + jax.random.normal(key, shape, dtype) for key in keys[:4])
    bias, scale, offset = (jax.random.normal(key, shape[2:]) for key in keys[4:])
    return x, h, bias, scale, offset, weights


def plain_after(x, h, bias, scale, offset, rate, key=KEY):
    return layer_norm.layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, EPSILON)


def after(name, *arrays, rate, key=KEY):
    return residual.residual_norm(name, *arrays, epsilon=EPSILON, rate=rate, key=key)


def plain_before(kind, x, scale, offset):
    return NORMS[kind](x, scale, offset, EPSILON), x


def before(name, kind, x, scale, offset):
    return residual.norm_beside(name, kind, x, scale, offset, EPSILON)


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


@on_both
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_the_end_of_a_half_and_its_gradients_are_those_of_the_plain_formula(name, rate):
    *arrays, weights = inputs(name)
    found = value_and_gradients(functools.partial(after, name, rate=rate), weights, *arrays)
    assert_close(found, value_and_gradients(functools.partial(plain_after, rate=rate), weights, *arrays))


def test_masks_where_products_of_integers_are_slow(monkeypatch):
    *arrays, _ = inputs("pallas")
    expected = after("pallas", *arrays, rate=0.5)
    monkeypatch.setattr(platform, "multiplies_integers", lambda: False)
    np.testing.assert_array_equal(after("pallas", *arrays, rate=0.5), expected)


@on_both
@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("has_offset", [True, False])
def test_the_start_of_a_half_and_its_gradients_are_those_of_the_plain_formula(name, kind, has_offset):
    x, _, _, scale, offset, weights = inputs(name)
    arrays = (x, scale, offset)[: 2 + has_offset]

    def with_offset(form, x, scale, offset=None):
        return form(x, scale, offset)

    fused, plain = functools.partial(before, name, kind), functools.partial(plain_before, kind)
    found = value_and_gradients(functools.partial(with_offset, fused), weights, *arrays)
    np.testing.assert_array_equal(found[1], x)
    assert_close(found, value_and_gradients(functools.partial(with_offset, plain), weights, *arrays))


@on_both
def test_without_a_key_nothing_is_dropped(name):
    *arrays, _ = inputs(name, rows=1)
    kept = after(name, *arrays, rate=0.0)
    np.testing.assert_array_equal(after(name, *arrays, rate=0.5, key=None), kept)


@pytest.mark.long
@on_both
def test_bfloat16_is_as_close_to_float32_as_the_plain_formulas(name):
    x, h, *parameters, _ = inputs(name)
    halves = [states.astype(jnp.bfloat16) for states in (x, h)]

    def error(form, exact):
        return float(jnp.abs(form.astype(jnp.float32) - exact).max())

    exact = plain_after(x, h, *parameters, 0.1)
    mine = error(after(name, *halves, *parameters, rate=0.1), exact)
    assert mine < 1.5 * error(plain_after(*halves, *parameters, 0.1), exact)
    for kind in NORMS:
        exact = plain_before(kind, x, *parameters[1:])[0]
        mine = error(before(name, kind, halves[0], *parameters[1:])[0], exact)
        assert mine < 1.5 * error(plain_before(kind, halves[0], *parameters[1:])[0], exact)


@pytest.mark.parametrize(
    "name, shapes",
    [("pallas", ((96, 128), (128, 312), (128, 2048))), ("triton", ((40, 128), (64, 312), (64, 2048)))],
)
def test_what_there_is_no_kernel_for_is_refused(name, shapes):
    for shape in shapes:
        x, of_features = jnp.ones((1, *shape)), jnp.ones(shape[1:])
        with pytest.raises(UserError, match=rf"residual={name} needs .*; use residual=auto, or xla"):
            after(name, x, x, *[of_features] * 3, rate=0.0)
        with pytest.raises(UserError, match=rf"residual={name} needs .*; use residual=auto, or xla"):
            before(name, "layernorm", x, of_features, of_features)


@on_both
def test_rows_of_a_part_have_the_dropout_of_the_whole_batch(name):
    x, h, *parameters, _ = inputs(name)
    whole = after(name, x, h, *parameters, rate=0.5)
    with row_ids(np.array([2])):
        part = after(name, x[2:], h[2:], *parameters, rate=0.5)
    np.testing.assert_allclose(part, whole[2:], atol=1e-5)


@pytest.mark.long
def test_devices_that_split_the_rows_compute_the_same():
    *arrays, weights = inputs("triton", rows=4)
    form = functools.partial(after, "triton", rate=0.3)
    expected = value_and_gradients(form, weights, *arrays)
    with sharding.on_mesh(sharding.make_mesh(data=2, fsdp=2, tensor=2)):
        assert_close(value_and_gradients(form, weights, *arrays), expected)


@pytest.mark.long
def test_what_triton_is_given_computes_the_same():
    """The operations of the kernels as Triton reads them, run in numpy."""
    *states, weights = inputs("triton", rows=1)
    # Two programs of a kernel: more take numpy seconds, and sum the same.
    x, h, bias, scale, offset, (g, of_x) = jax.tree.map(
        lambda one: np.asarray(one[:, :32] if one.ndim == 3 else one), (*states, weights)
    )
    words = np.asarray(kernel_words(KEY, len(x)))[:, None]
    three, two = np.stack([bias, scale, offset]), np.stack([scale, offset])
    after_settings, before_settings = dict(epsilon=EPSILON, rate=0.3), dict(epsilon=EPSILON, centered=True)

    def check(kernel, settings, *arrays, inputs, **results):
        def run(interpret, *arrays):
            body = functools.partial(kernel, **settings)
            given = arrays[:inputs], arrays[inputs:]
            return gpu_residual.run_by_rows(body, *given, **results, interpret=interpret)

        expected = jax.jit(functools.partial(run, True))(*arrays)
        module = lowering.lower(functools.partial(run, False), "cuda", *arrays).compiler_ir()
        ((program, grid),) = triton_programs.kernels(module)
        found = [np.zeros_like(one) for one in expected]
        triton_programs.run(program, grid, [*arrays, *found])
        assert_close(found, expected)
        return found

    kernels = gpu_residual
    _, total = check(kernels.after_forward, after_settings, words, three, x, h, inputs=2, results=2)
    check(kernels.after_backward, after_settings, words, three, g, total, inputs=2, results=2, sums=3)
    check(kernels.before_forward, before_settings, two, x, inputs=1, results=1)
    check(kernels.before_backward, before_settings, two, x, g, of_x, inputs=1, results=1, sums=2)
