"""The word embeddings of pre-training: one reduction of their gradient, and losses in chunks of rows."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import gradients
from support.models import packed_batch, tiny_task

from bert_jax.kernels import tied_table
from bert_jax.kernels.tied_table import LateLogits
from bert_jax.objectives import losses
from bert_jax.objectives.causal_lm import CausalLM
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers
from bert_jax.training.state import abstract_state
from bert_jax.training.step import make_train_step

VOCAB, HIDDEN = 104, 32


def all_reduced(mesh, rows=16):
    """The shapes that the all-reduces of a train step have on this mesh."""
    task = tiny_task(vocab_size=VOCAB, num_hidden_layers=1)
    tx, schedule = optimizers.make_optimizer(OptimizerConfig(), 20_000, task)
    state = abstract_state(task, tx, mesh)
    step = sharding.jit_train_step(
        make_train_step(task, tx, schedule), mesh, jax.tree.map(lambda leaf: leaf.sharding, state)
    )
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding.batch_sharding(mesh))
        for name, array in packed_batch(rows=rows, vocab=VOCAB).items()
    }
    text = step.lower(state, batch, np.uint32(0)).compile().as_text()
    lines = [line for line in text.splitlines() if re.search(r" all-reduce(-start)?\(", line)]
    return [shape for line in lines for shape in re.findall(r"\w+\[[\d,]+\]", line.split(" all-reduce")[0])]


@pytest.mark.long
@pytest.mark.parametrize("data, fsdp, tensor", [(8, 1, 1), (4, 1, 2)])
def test_the_gradient_is_reduced_once(data, fsdp, tensor):
    shapes = all_reduced(sharding.make_mesh(data, fsdp, tensor))
    assert shapes.count(f"f32[{VOCAB // tensor},{HIDDEN}]") == 1, shapes


def test_values_and_gradients_are_those_of_the_plain_table():
    keys = jax.random.split(jax.random.key(0), 4)
    table, bias = jax.random.normal(keys[0], (VOCAB, HIDDEN)), jax.random.normal(keys[2], (VOCAB,))
    ids = jax.random.randint(keys[1], (16, 12), 0, VOCAB)
    dimensions = []

    def logits(split, table, bias):
        shared = tied_table.for_each_shard(table, 16) if split else table
        dimensions.append(shared.ndim)
        return tied_table.logits(jnp.tanh(tied_table.look_up(shared, ids)), shared, bias)

    forms = (functools.partial(logits, split) for split in (True, False))
    with sharding.on_mesh(sharding.make_mesh(4, 2)):
        weights = jax.random.normal(keys[3], (16, 12, VOCAB))
        gradients.assert_same(*forms, (table, bias), weights, rtol=1e-4, atol=1e-4)
    assert dimensions == [3, 2]


# Logits that are computed in chunks of rows.


@functools.partial(jax.jit, static_argnames=("rows", "positions"))
def example(rows, positions, seed):
    """Returns states, a table, a bias, labels and weights, a third of which are 0."""
    keys = jax.random.split(jax.random.key(seed), 5)
    x = jax.random.normal(keys[0], (rows, positions, HIDDEN))
    table, bias = jax.random.normal(keys[1], (VOCAB, HIDDEN)), jax.random.normal(keys[2], (VOCAB,))
    labels = jax.random.randint(keys[3], (rows, positions), 0, VOCAB)
    weights = jax.random.uniform(keys[4], (rows, positions))
    return x, table, bias, labels, jnp.where(weights > 1 / 3, weights, 0.0)


def whole(x, table, bias, labels, weights):
    """Returns the sums of the loss and of the accuracy."""
    (loss, _), (hits, _) = losses.of_tokens(tied_table.logits(x, table, bias), labels, weights)
    return loss, hits


def late(x, table, bias, labels, weights):
    (loss, _), (hits, _) = losses.of_tokens(LateLogits(x, table, bias), labels, weights)
    return loss, hits


@pytest.mark.long
@settings(deadline=None, max_examples=6)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_losses_accuracies_and_gradients_are_those_of_all_logits(rows, positions, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tied_table, "_ROWS", 8)  # one to ten chunks; the last one is padded
        *arrays, labels, weights = example(rows, positions, seed)
        forms = (lambda *of, form=form: form(*of, labels, weights) for form in (late, whole))
        # The accuracy has no gradient.
        gradients.assert_same(*forms, arrays, (jnp.float32(3), jnp.float32(0)))
        # Without a gradient, another program computes the sums.
        gradients.assert_close(*(jax.jit(form)(*arrays, labels, weights) for form in (late, whole)))


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
    gradients.assert_close((close, again), (exact, metrics), rtol=1e-4)
