import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.models import packed_batch, tiny_task
from support.regression import Regression, make_batch

from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers
from bert_jax.training.state import init_state
from bert_jax.training.step import make_eval_step, make_train_step


@pytest.fixture(scope="module")
def run():
    task = tiny_task()
    tx, schedule = optimizers.make_optimizer(OptimizerConfig(learning_rate=1e-2, warmup_steps=0), 1000, task)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    step = jax.jit(make_train_step(task, tx, schedule))
    there = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def call(state, batch, seed=0):  # a state with a leaf elsewhere would be compiled for again
        return step(jax.device_put(state, there), batch, np.uint32(seed))

    return task, init_state(task, tx, mesh, 0), call


@pytest.mark.long
def test_one_batch_is_learned_by_heart(run):
    _, state, step = run
    batch = packed_batch(rows=4)
    for _ in range(120):
        state, metrics = step(
            state.replace(step=jnp.int32(0)), batch
        )  # the masks and dropout of step 0 each time
    assert (
        metrics["loss"] < 0.5 and metrics["mlm_accuracy"] > 0.9 and metrics["nsp_accuracy"] == 1
    )  # from 5.3


def test_all_steps_after_the_limit_are_skipped_and_counted():
    objective = Regression()
    state = init_state(objective, optax.identity(), sharding.make_mesh(devices=jax.devices()[:1]), 0)
    step = jax.jit(make_train_step(objective, optax.identity(), lambda step: 1e-4, max_skipped=3))
    batch, states, counts = make_batch(0), [], []
    for value in (np.nan, np.nan, 1, np.nan, np.nan, np.nan, 1, 1):
        state, metrics = step(state, batch | {"x": value * batch["x"]}, np.uint32(0))
        states.append(state)
        counts.append((int(state.skipped), float(metrics["skipped"])))
    assert counts == [(n, n) for n in (1, 2, 0, 1, 2, 3, 4, 5)] and state.step == 8
    kernels = [np.asarray(state.params["encoder"]["w"]) for state in states]
    assert np.array_equal(kernels[2], kernels[-1]) and not np.array_equal(kernels[1], kernels[2])


class Shown(Objective):
    """Its metrics are what the step gives it, and its weights are small."""

    def init(self, key):
        return {"kernel": nn.Partitioned(jnp.ones(2), names=("embed",))}

    def prepare(self, batch, key, train):
        return batch | {"key": jax.random.uniform(key), "train": train}

    def weights(self, batch):
        return {"task": jnp.float32(0.25)}

    def loss(self, params, batch, rngs):
        shown = {name: batch[name] for name in ("key", "train")}
        if rngs:
            shown["dropout"] = jax.random.uniform(rngs["dropout"])
        metrics = {name: (jnp.float32(x), jnp.float32(1)) for name, x in shown.items()}
        return {"task": (1e-3 * jnp.sum(params["kernel"]), jnp.float32(0.25))}, metrics


def test_what_a_step_of_training_and_of_evaluation_gives_an_objective():
    objective, mesh = Shown(), sharding.make_mesh(devices=jax.devices()[:1])
    state = init_state(objective, optax.identity(), mesh, 0)
    batch = {"input_ids": jnp.zeros((2, 2), jnp.int32)}
    step = make_train_step(objective, optax.identity(), lambda step: 0.5 * step, check="nothing")
    keys = []
    for number, seed in ((5, 0), (6, 0), (5, 1)):
        after, metrics = step(state.replace(step=jnp.int32(number)), batch, np.uint32(seed))
        assert (metrics["train"], metrics["learning_rate"]) == (1, 0.5 * number)
        assert float(metrics["loss"]) == pytest.approx(2e-3 / 0.25)
        np.testing.assert_allclose(after.params["kernel"], 1 - 0.5 * number * 1e-3 / 0.25)
        keys += [float(metrics[name]) for name in ("key", "dropout")]
    for index, seed in ((0, 0), (1, 0), (0, 1)):
        found = make_eval_step(objective)(state.params, batch, index, np.uint32(seed))
        assert found.keys() == {"task_loss", "key", "train"} and found["train"] == (0, 1)
        keys.append(float(found["key"][0]))
    assert len(set(keys)) == 9


def test_a_batch_with_nothing_to_learn_changes_nothing_and_has_no_metrics(run):
    _, state, step = run
    batch = packed_batch(rows=4)
    empty = {name: np.zeros_like(value) for name, value in batch.items()} | {"row_ids": batch["row_ids"]}
    empty["starts"] = np.full_like(batch["starts"], 32)
    empty["next_sentence_labels"] = np.full_like(batch["starts"], -1)
    after, metrics = step(state, empty)
    assert (
        metrics["loss"] == 0
        and np.isnan([metrics["mlm_accuracy"], metrics["mlm_loss"], metrics["nsp_loss"]]).all()
        and metrics["skipped"] == 0
        and metrics["tokens"] == 0
    )
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after.params))


def test_masks_and_dropout_are_new_each_step_and_a_function_of_seed_and_step(run):
    _, state, step = run
    batch = packed_batch(rows=4)
    first = step(state, batch)[1]["loss"]
    assert first == step(state, batch)[1]["loss"]
    assert first != step(state.replace(step=state.step + 1), batch)[1]["loss"]
    assert first != step(state, batch, seed=1)[1]["loss"]
