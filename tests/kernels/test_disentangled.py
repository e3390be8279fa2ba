"""Disentangled attention compared with gathers from the same table, and its TPU kernel with the XLA form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import disentangled, xla_attention
from bert_jax.parallel import sharding


def inputs(batch, length, heads, size):
    """Returns queries, keys and values, both tables, and ids of two sequences and padding."""
    rng = np.random.default_rng(length + heads)
    arrays = [jnp.float32(rng.normal(size=(batch, length, heads, size))) for _ in range(3)]
    tables = [jnp.float32(rng.normal(size=(2 * length - 1, heads, size))) for _ in range(2)]
    ids = np.ones((batch, length), np.int32)
    ids[0, length // 3 :], ids[0, length - 9 :] = 2, 0
    return arrays, tables, jnp.asarray(ids)


def by_gathers(query, key, value, keys_table, queries_table, ids):
    """The formula of section 3.1, with a table row for each pair of tokens."""
    length, size = query.shape[1], query.shape[-1]
    distance = np.subtract.outer(np.arange(length), np.arange(length))
    logits = jnp.einsum("bind,bjnd->bnij", query, key)
    logits += jnp.einsum("bind,ijnd->bnij", query, keys_table[length - 1 - distance])
    logits += jnp.einsum("bjnd,ijnd->bnij", key, queries_table[length - 1 + distance])
    logits = jnp.where(xla_attention.allowed_pairs(ids), logits / np.sqrt(3 * size), -jnp.inf)
    return jnp.einsum("bnij,bjnd->bind", jax.nn.softmax(logits), value)


def differentiated(form, arrays, tables, ids):
    """Returns the result at real tokens and the gradients of all inputs."""
    real = (ids > 0)[..., None, None]

    def loss(*inputs):
        out = form(*inputs) * real
        return jnp.sum(jnp.sin(3 * out)), out

    (_, out), gradients = jax.jit(jax.value_and_grad(loss, range(5), has_aux=True))(*arrays, *tables)
    return out, *gradients


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * np.abs(other).max())


@pytest.mark.parametrize("length", [20, 256])  # shorter and longer than a block
def test_shifts_give_what_gathers_give(length):
    arrays, tables, ids = inputs(2, length, 2, 8)
    xla = functools.partial(disentangled.attend, sequence_ids=ids, implementation="xla")
    plain = functools.partial(by_gathers, ids=ids)
    assert_equal(*(differentiated(form, arrays, tables, ids) for form in (xla, plain)))


@pytest.mark.long
@pytest.mark.parametrize(
    "batch, length, heads, size, rate", [(2, 128, 2, 64, 0.1), (1, 256, 4, 32, 0.3), (1, 256, 1, 128, 0.0)]
)
def test_the_tpu_kernel_computes_the_xla_form(batch, length, heads, size, rate):
    arrays, tables, ids = inputs(batch, length, heads, size)
    forms = [
        functools.partial(
            disentangled.attend,
            sequence_ids=ids,
            implementation=name,
            dropout_rate=rate,
            dropout_key=jax.random.key(5) if rate else None,
        )
        for name in ("pallas", "xla")
    ]
    assert_equal(*(differentiated(form, arrays, tables, ids) for form in forms))


@pytest.mark.long
def test_a_term_is_missing_in_the_tpu_kernel_too():
    (query, key, value), (table, _), ids = inputs(1, 128, 2, 64)
    found, expected = (
        disentangled.attend(query, key, value, None, table, ids, implementation=name)
        for name in ("pallas", "xla")
    )
    assert_equal([found[ids > 0]], [expected[ids > 0]])


@pytest.mark.long
def test_devices_that_split_rows_and_heads_sum_the_gradients_of_the_tables():
    arrays, tables, ids = inputs(4, 128, 4, 64)
    options = dict(sequence_ids=ids, dropout_rate=0.1, dropout_key=jax.random.key(5))
    expected, found = (
        functools.partial(disentangled.attend, implementation=name, **options) for name in ("xla", "pallas")
    )
    expected = differentiated(expected, arrays, tables, ids)
    with sharding.on_mesh(sharding.make_mesh(data=4, tensor=2)):
        found = differentiated(found, arrays, tables, ids)
    assert_equal(found, expected)
