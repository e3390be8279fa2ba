"""Muon on a mesh of data, fsdp and tensor: split moments, a resumed run, a single device."""

from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regression import Run, assert_same

from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import state
from bert_jax.training.optimizers import make_optimizer

pytestmark = pytest.mark.usefixtures("quick_compilation")

LAYERS, HIDDEN, HEADS, SIZE, WORDS = 2, 16, 4, 8, 32


class Words(Objective):
    """A word is guessed from another by two layers of one matrix each, with the names of an encoder's."""

    config = EncoderConfig(num_hidden_layers=LAYERS)

    def init(self, key):
        keys = jax.random.split(key, 3)
        table = 0.1 * jax.random.normal(keys[0], (WORDS, HIDDEN))
        shape = (LAYERS, HIDDEN, HEADS, SIZE)
        kernel, back = 0.1 * jax.random.normal(keys[1], shape), 0.1 * jax.random.normal(keys[2], shape)
        layer = {
            "query": {"kernel": nn.LogicallyPartitioned(kernel, names=("layers", "embed", "heads", "kv"))},
            "attention_output": {
                "kernel": nn.LogicallyPartitioned(
                    back.transpose(0, 2, 3, 1), names=("layers", "heads", "kv", "embed")
                ),
                "bias": nn.LogicallyPartitioned(jnp.zeros((LAYERS, HIDDEN)), names=("layers", "embed")),
            },
        }
        table = nn.LogicallyPartitioned(table, names=("vocab", "embed"))
        return {"encoder": {"embeddings": {"word_embeddings": table}, "layers": {"stack": {"layer": layer}}}}

    def prepare(self, batch, key, train):
        return batch

    def weights(self, batch):
        return {"words": jnp.float32(batch["ids"].shape[0])}

    def loss(self, params, batch, rngs):
        table = params["encoder"]["embeddings"]["word_embeddings"]
        layer = params["encoder"]["layers"]["stack"]["layer"]
        x = table[batch["ids"]]
        for number in range(LAYERS):
            hidden = jnp.tanh(jnp.einsum("bh,hnd->bnd", x, layer["query"]["kernel"][number]))
            back = layer["attention_output"]
            x = x + jnp.einsum("bnd,ndh->bh", hidden, back["kernel"][number]) + back["bias"][number]
        logits = jax.nn.log_softmax(x @ table.T)
        picked = jnp.take_along_axis(logits, batch["next"][:, None], 1)
        return {"words": (-picked.sum(), self.weights(batch)["words"])}, {}


def batches(step, own):
    while True:
        ids = np.random.default_rng(step).integers(0, WORDS, 16, dtype=np.int32)
        yield {"ids": ids[own], "next": (ids[own] * 7 + 3) % WORDS}
        step += 1


def train(path, steps, mesh):
    config = OptimizerConfig(name="muon", learning_rate=0.02, warmup_steps=1, schedule="constant")
    run = Run(path, steps=steps, eval__every=0, checkpoint__every=0)
    run.task, run.train_data, run.optimizer = Words(), batches, make_optimizer(config, steps, Words())
    run.eval_data = lambda own: (batch for batch in ())
    with mock.patch.object(sharding, "make_mesh", return_value=mesh):
        return run.fit()


@pytest.mark.long
def test_a_run_on_a_mesh_resumes_and_is_that_of_one_device(tmp_path):
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    whole = train(tmp_path / "whole", 4, mesh)
    train(tmp_path / "parts", 2, mesh)
    resumed = train(tmp_path / "parts", 4, mesh)
    assert_same(whole, resumed)
    alone = train(tmp_path / "alone", 4, sharding.make_mesh(devices=jax.devices()[:1]))
    for one, other in zip(jax.tree.leaves(whole.params), jax.tree.leaves(alone.params), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-5, atol=2e-6)
    start = state.init_state(
        Words(), make_optimizer(OptimizerConfig(name="muon"), 20_000, Words())[0], mesh, 0
    )
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), whole.params, start.params)
    assert min(jax.tree.leaves(moved)) > 1e-5
