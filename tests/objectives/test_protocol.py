"""Each objective is trained on eight devices by the same step, with dropout and with its batch in parts."""

import functools

import jax
import numpy as np
import optax
import pytest
from support import states
from support.objectives import OBJECTIVES

from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step, make_train_step

SPLIT = (2, 2, 2)  # a mesh on which every axis splits something
NAMES = (
    "replaced tokens", "replaced tokens of DeBERTa", "distillation", "classification", "contrastive",
    "late interaction", "classes of pairs", "denoising", "denoising, packed",
)  # fmt: skip


@functools.cache
def objective_and_batches(name):
    make, batches = OBJECTIVES[name]
    return make(), batches


OPTIMIZER = optax.scale_by_adam()


@functools.cache
def begin(name):
    """A state on the host."""
    objective, _ = objective_and_batches(name)
    return jax.device_get(init_state(objective, OPTIMIZER, sharding.make_mesh(*SPLIT), 0))


@functools.cache
def place(name, sizes):
    """The mesh, and the shardings of a state on it."""
    objective, _ = objective_and_batches(name)
    mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    abstract = abstract_state(objective, OPTIMIZER, mesh)
    return mesh, jax.tree.map(lambda leaf: leaf.sharding, abstract)


@functools.cache
def train(name, parts=1, sizes=SPLIT):
    """Two steps: the metrics of each, and the state after them."""
    objective, batches = objective_and_batches(name)
    mesh, shardings = place(name, sizes)
    state = jax.device_put(begin(name), shardings)
    step = make_train_step(objective, OPTIMIZER, lambda step: 1e-3, parts)
    step, lines = sharding.jit_train_step(step, mesh, shardings), []
    for number in range(2):
        state, metrics = step(state, sharding.global_batch(batches(number), mesh), np.uint32(3))
        lines.append({name: float(value) for name, value in metrics.items()})
    return lines, state


@functools.cache
def evaluate(name, sizes=SPLIT):
    """The sums of an evaluation of a whole batch after the two steps."""
    objective, batches = objective_and_batches(name)
    mesh, shardings = place(name, sizes)
    _, state = train(name, sizes=sizes)
    step = sharding.jit_eval_step(make_eval_step(objective), mesh, shardings)
    frozen = () if state.frozen is None else (state.frozen,)
    found = step(state.params, sharding.global_batch(batches(9), mesh), np.int32(0), np.uint32(3), *frozen)
    return {name: float(total) for name, (total, _) in found.items()}


@pytest.mark.long
@pytest.mark.parametrize("parts", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "distillation"])
def test_parts_are_the_whole_batch(name, parts):
    whole, whole_state = train(name)
    lines, state = train(name, parts)
    states.assert_close_runs((lines, state.params), (whole, whole_state.params))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_devices_that_add_up_their_own_rows_are_one_device(name):
    alone, state_of_one = train(name, sizes=(1, 1, 1))
    lines, state = train(name, sizes=(8, 1, 1))
    states.assert_close_runs((lines, state.params), (alone, state_of_one.params))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_scaled_sum(name):
    objective, _ = objective_and_batches(name)
    evaluation = evaluate(name)
    for line in train(name)[0]:
        assert not line["skipped"]
        names = [key.removesuffix("_loss") for key in line if key.endswith("_loss")]
        assert {f"{key}_loss" for key in names} <= evaluation.keys()
        total = sum(objective.scales.get(key, 1) * line[f"{key}_loss"] for key in names)
        assert set(objective.scales) <= set(names) and line["loss"] == pytest.approx(total, rel=1e-5)


def test_what_is_frozen_is_sharded_and_never_changes():
    objective, _ = objective_and_batches("distillation")
    begun, (_, state) = begin("distillation"), train("distillation")
    given = sharding.unbox(objective.frozen())
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen), jax.device_get(given))
    assert any("tensor" in str(leaf.sharding.spec) for leaf in jax.tree.leaves(state.frozen))
    changed = jax.tree.map(lambda new, old: bool(np.any(np.asarray(new) != old)), state.params, begun.params)
    assert any(jax.tree.leaves(changed))
    sizes = [leaf.size for leaf in jax.tree.leaves(state.opt_state)]
    assert sum(sizes) == 1 + 2 * sum(leaf.size for leaf in jax.tree.leaves(state.params))
    assert "frozen" not in str(jax.tree_util.tree_structure((state.params, state.opt_state)))
