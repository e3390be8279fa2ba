"""Losses of logits that are computed in chunks of rows equal the losses of all logits at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.models import packed_batch, tiny_task

from bert_jax.kernels import tied_table
from bert_jax.kernels.tied_table import LateLogits
from bert_jax.objectives import losses
from bert_jax.objectives.causal_lm import CausalLM

VOCAB, HIDDEN = 50, 8


@functools.partial(jax.jit, static_argnames=("rows", "positions", "dtype"))
def example(rows, positions, seed=0, dtype=jnp.float32):
    """Returns states, a table, a bias, labels and weights, a third of which are 0."""
    keys = jax.random.split(jax.random.key(seed), 5)
    x = jax.random.normal(keys[0], (rows, positions, HIDDEN), dtype)
    table, bias = jax.random.normal(keys[1], (VOCAB, HIDDEN)), jax.random.normal(keys[2], (VOCAB,))
    labels = jax.random.randint(keys[3], (rows, positions), 0, VOCAB)
    weights = jax.random.uniform(keys[4], (rows, positions))
    return x, table, bias, labels, jnp.where(weights > 1 / 3, weights, 0.0)


def whole(x, table, bias, labels, weights):
    """Returns (3 x loss, accuracy) as sums; the gradient must include the factor 3."""
    (loss, _), (hits, _) = losses.of_tokens(tied_table.logits(x, table, bias), labels, weights)
    return 3 * loss, hits


def late(x, table, bias, labels, weights):
    (loss, _), (hits, _) = losses.of_tokens(LateLogits(x, table, bias), labels, weights)
    return 3 * loss, hits


def gradients(function, arguments, which=(0, 1, 2)):
    return jax.jit(jax.value_and_grad(function, which, has_aux=True))(*arguments)


@pytest.mark.long
@settings(deadline=None, max_examples=6)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_losses_accuracies_and_gradients_are_those_of_all_logits(rows, positions, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tied_table, "_ROWS", 8)  # one to ten chunks; the last one is padded
        arguments = example(rows, positions, seed)
        expected = gradients(whole, arguments)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
            gradients(late, arguments),
            expected,
        )
        for found, sums in zip(jax.jit(late)(*arguments), expected[0], strict=True):
            np.testing.assert_allclose(found, sums, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
def test_pre_training_uses_chunks_and_has_the_same_loss(causal, monkeypatch):
    task = tiny_task(causal=causal)
    if causal:
        task = CausalLM(task.config)
    params = jax.jit(task.init)(jax.random.key(0))
    batch = task.prepare(packed_batch(rows=8), jax.random.key(1), train=True)

    def loss(params):
        pairs, metrics = task.loss(params, batch, None)
        return sum(total for total, _ in pairs.values()), metrics

    (expected, metrics), exact = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    monkeypatch.setattr(tied_table, "_ROWS", 4)
    jax.clear_caches()
    calls = []
    original = tied_table.cross_entropy
    monkeypatch.setattr(tied_table, "cross_entropy", lambda *all: calls.append(1) or original(*all))
    (found, again), close = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert calls and float(found) == pytest.approx(float(expected), rel=1e-6)
    for pair, other in zip(jax.tree.leaves((close, again)), jax.tree.leaves((exact, metrics)), strict=True):
        np.testing.assert_allclose(pair, other, rtol=1e-4, atol=1e-5)
