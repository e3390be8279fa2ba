"""Frozen parameters in a work directory: saved once, checked when the run goes on, and read back."""

import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.updates import Stacked

from bert_jax import checkpoint
from bert_jax.checkpoint.leaves import flatten
from bert_jax.errors import UserError
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import (
    CheckpointConfig,
    EvalConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from bert_jax.training import optimizers, train
from bert_jax.training.evaluators import EvalStep, RecordEvaluator
from bert_jax.training.metrics import MetricsWriter
from bert_jax.training.state import init_state
from bert_jax.workdir.run_directory import WorkDir


class Head(Objective):
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

    def prepare(self, batch, key, train):
        return batch

    def weights(self, batch):
        return {"mse": jnp.float32(batch["x"].shape[0])}

    def loss(self, params, batch, rngs):
        error = jnp.tanh(batch["x"] @ params["layer"]) @ params["head"] - batch["y"]
        return {"mse": (jnp.sum(error**2), jnp.float32(error.shape[0]))}, {}


def make_batch(number):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(16, 8)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1)}


def fit(path, steps, objective=None, said=None, **changes):
    config = RunConfig(
        steps=steps, batch_size=16, log_every=1, max_skipped_steps=3, model=ModelConfig(dtype="float32"),
        checkpoint=CheckpointConfig(every=2, keep=9), eval=EvalConfig(every=2),
        optimizer=OptimizerConfig(name="sgd", args="momentum=0.9", schedule="constant", learning_rate=0.01,
                                  warmup_steps=0, weight_decay=0.0, clip_norm=0.0),
        mesh=MeshConfig(2, 2, 2), **changes,
    )  # fmt: skip
    objective, mesh = objective or Head(), sharding.make_mesh(2, 2, 2)
    writer = MetricsWriter(path, total_steps=steps, terminal=False)
    writer.message = (said if said is not None else []).append

    def train_data(step, own):
        while True:
            yield make_batch(step)
            step += 1

    evaluator = RecordEvaluator(
        EvalStep(objective, 0, mesh),
        lambda own, step: (make_batch(n) for n in (99,)),
        batch_size=16,
        every=2,
    )
    with WorkDir(path) as workdir:
        try:
            return train.fit(
                workdir=workdir, config=config, objective=objective, train_data=train_data,
                evaluators=[evaluator], flops_per_step=0, writer=writer,
            )  # fmt: skip
        finally:
            writer.close()


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(one), jax.device_get(other))


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
    said = []
    straight = fit(tmp_path / "straight", 8, said=said)
    assert any("8 parameters and 64 frozen ones" in line for line in said)
    path = tmp_path / "run"
    fit(path, 4)
    frozen = path / "checkpoints" / "frozen"
    written = {file: file.stat().st_mtime_ns for file in frozen.rglob("*")}
    step = checkpoint.describe(path / "checkpoints" / "4")
    assert not any(name.startswith("frozen") for name in step)
    assert_same(fit(path, 8), straight)
    assert {file: file.stat().st_mtime_ns for file in frozen.rglob("*")} == written
    # The values are those that are saved.
    for other in (Head(values=False), Head(seed=2)):
        (copy := tmp_path / f"other-{other._seed}").mkdir()
        fit(copy, 4)
        assert_same(fit(copy, 8, other), straight)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [2, 4, 6, 8]


@pytest.mark.long
def test_there_have_to_be_values(tmp_path):
    with pytest.raises(UserError, match="no values"):
        fit(tmp_path / "new", 4, Head(values=False))
