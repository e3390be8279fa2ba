"""Frozen parameters in a work directory: saved once, checked when the run goes on, and read back."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.regression import Regression, Run, assert_same, make_batch
from support.updates import Stacked

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten
from bert_jax.parallel import sharding
from bert_jax.training import optimizers
from bert_jax.training.state import init_state


class Head(Regression):
    """A head on a frozen layer, by squared error."""

    def __init__(self, seed=1, values=True):
        self._seed, self._values = seed, values

    def init(self, key):
        return {"head": nn.Partitioned(jax.random.normal(key, (8,)), names=("embed",))}

    def frozen(self):
        value = np.random.default_rng(self._seed).normal(size=(8, 8)).astype(np.float32)
        if not self._values:
            value = jax.ShapeDtypeStruct(value.shape, value.dtype)
        return {"layer": nn.Partitioned(value, names=("embed", "mlp"))}

    def join(self, params, frozen):
        return params | frozen

    def loss(self, params, batch, rngs):
        error = jnp.tanh(batch["x"] @ params["layer"]) @ params["head"] - batch["y"]
        return {"mse": (jnp.sum(error**2), self.weights(batch)["mse"])}, {}


def fit(path, steps, objective=None):
    changes = {"checkpoint__every": 2, "checkpoint__keep": 9, "mesh__fsdp": 2, "mesh__tensor": 2}
    run = Run(path, steps=steps, eval__every=2, **changes)
    run.task = objective or Head()
    run.eval_data = lambda own: (make_batch(n) for n in (99,))
    return run, run.fit()


def test_given_parameters_come_before_new_ones(monkeypatch):
    """Those that are trained and those that are frozen; a part of each is not given."""
    # With several processes, it would gather an array of the host from all of them to compare its values.
    monkeypatch.delattr(jax, "device_put")
    objective = optimizers.freeze(Stacked(), "encoder/embeddings/.*|encoder/layers/[02]/.*")
    table, bias = np.full((5, 3), 7, np.float32), np.full(2, 5, np.float32)
    given = {"encoder": {"embeddings": {"word_embeddings": table}}, "classifier": {"bias": bias}}
    mesh = sharding.make_mesh(2, 2, 2)
    state = init_state(objective, optax.identity(), mesh, 0, given=given)
    values = flatten(state.params) | flatten(state.frozen["params"])
    np.testing.assert_array_equal(values.pop("encoder/embeddings/word_embeddings"), table)
    np.testing.assert_array_equal(values.pop("classifier/bias"), bias)
    assert len(values) == 5 and all(np.all(np.asarray(value) == 1) for value in values.values())


@pytest.mark.long
def test_saved_once_and_resumed(tmp_path):
    run, straight = fit(tmp_path / "straight", 8)
    assert run.logged("8 parameters and 64 frozen ones")
    path = tmp_path / "run"
    fit(path, 4)
    frozen = path / "checkpoints" / "frozen"
    written = {file: file.stat().st_mtime_ns for file in frozen.rglob("*")}
    step = checkpoint.verify(path / "checkpoints" / "4")
    assert not any(name.startswith("frozen") for name in step)
    run, state = fit(path, 8)
    assert_same(state, straight)
    assert {file: file.stat().st_mtime_ns for file in frozen.rglob("*")} == written
    assert run.steps_of("eval") == [2, 4, 6, 8]
    # The values are those that are saved.
    for other in (Head(values=False), Head(seed=2)):
        (copy := tmp_path / f"other-{other._seed}").mkdir()
        fit(copy, 4)
        assert_same(fit(copy, 8, other)[1], straight)
