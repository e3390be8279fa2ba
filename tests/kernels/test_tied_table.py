"""The word embeddings of pre-training, used twice: one reduction of their gradient, the same numbers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import packed_batch, tiny_task

from bert_jax.kernels import tied_table
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
    keys = jax.random.split(jax.random.key(0), 3)
    table = jax.random.normal(keys[0], (VOCAB, HIDDEN))
    ids = jax.random.randint(keys[1], (16, 12), 0, VOCAB)
    bias = jax.random.normal(keys[2], (VOCAB,))

    def loss(table, bias, split):
        shared = tied_table.for_each_shard(table, 16) if split else table
        out = tied_table.logits(jnp.tanh(tied_table.look_up(shared, ids)), shared, bias)
        return jnp.sum(jax.nn.log_softmax(out)[..., 0]), (shared.ndim, out)

    def run(split):
        return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True), static_argnums=2)(table, bias, split)

    with sharding.on_mesh(sharding.make_mesh(4, 2)):
        mine, plain = run(True), run(False)
    assert (mine[0][1][0], plain[0][1][0]) == (3, 2)
    np.testing.assert_allclose(mine[0][1][1], plain[0][1][1], rtol=1e-5, atol=1e-5)
    for got, expected in zip(mine[1], plain[1], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
