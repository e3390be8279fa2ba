"""Disentangled attention compared with gathers from the same table, and its TPU kernel with the XLA form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import gradients

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


def at_real_tokens(form, ids, **options):
    """Returns a form of attention as a function of queries, keys, values and both tables."""
    real = (ids > 0)[..., None, None]
    return lambda *inputs: form(*inputs, ids, **options) * real


close = functools.partial(gradients.assert_close, rtol=0, atol=2e-5, scaled=True)
compare = functools.partial(gradients.assert_same, rtol=0, atol=2e-5, scaled=True)


@pytest.mark.parametrize("length", [20, 256])  # shorter and longer than a block
def test_shifts_give_what_gathers_give(length):
    arrays, tables, ids = inputs(2, length, 2, 8)
    xla = at_real_tokens(disentangled.attend, ids, implementation="xla")
    compare(xla, at_real_tokens(by_gathers, ids), (*arrays, *tables), jnp.cos(arrays[0]))


@pytest.mark.long
@pytest.mark.parametrize(
    "batch, length, heads, size, rate", [(2, 128, 2, 64, 0.1), (1, 256, 4, 32, 0.3), (1, 256, 1, 128, 0.0)]
)
def test_the_tpu_kernel_computes_the_xla_form(batch, length, heads, size, rate):
    arrays, tables, ids = inputs(batch, length, heads, size)
    options = dict(dropout_rate=rate, dropout_key=jax.random.key(5) if rate else None)
    forms = (at_real_tokens(disentangled.attend, ids, implementation=x, **options) for x in ("pallas", "xla"))
    compare(*forms, (*arrays, *tables), jnp.cos(arrays[0]))


@pytest.mark.long
def test_a_term_is_missing_in_the_tpu_kernel_too():
    (query, key, value), (table, _), ids = inputs(1, 128, 2, 64)
    found, expected = (
        disentangled.attend(query, key, value, None, table, ids, implementation=name)
        for name in ("pallas", "xla")
    )
    close(found[ids > 0], expected[ids > 0])


@pytest.mark.long
def test_devices_that_split_rows_and_heads_sum_the_gradients_of_the_tables():
    arrays, tables, ids = inputs(4, 128, 4, 64)
    options = dict(dropout_rate=0.1, dropout_key=jax.random.key(5))
    xla, pallas = (
        at_real_tokens(disentangled.attend, ids, implementation=x, **options) for x in ("xla", "pallas")
    )
    given = (*arrays, *tables), jnp.cos(arrays[0])
    expected = gradients.with_gradients(xla, *given)
    with sharding.on_mesh(sharding.make_mesh(data=4, tensor=2)):
        close(gradients.with_gradients(pallas, *given), expected)
