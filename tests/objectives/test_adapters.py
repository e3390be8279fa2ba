"""Adapters: the trained parameters, the names of parts of stacked parameters, and the result of `join`."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.models import tiny_task

from bert_jax.checkpoint.leaves import flatten
from bert_jax.objectives.adapters import PartlyFrozen, assemble, group_parts, part_name
from bert_jax.objectives.base import Objective
from bert_jax.parallel.sharding import make_mesh, unbox
from bert_jax.training.state import init_state


@pytest.mark.parametrize(
    "indices, name",
    [([0], "a/axis0_0"), ([0, 1, 2], "a/axis0_0-2"), ([0, 2, 3, 4, 9], "a/axis0_0,2-4,9")],
)
def test_names_of_parts(indices, name):
    assert part_name("a", 0, indices) == name
    assert group_parts([name, "b"]) == {"a": [name], "b": ["b"]}


@pytest.mark.parametrize("module", [np, jnp])
@pytest.mark.parametrize("axis, first", [(0, [0, 1]), (0, [2]), (0, [0, 2]), (1, [1, 3])])
def test_parts_are_assembled_in_the_order_of_their_indices(module, axis, first):
    whole = np.arange(12.0).reshape(3, 4)
    rest = [index for index in range(whole.shape[axis]) if index not in first]
    for order in ((first, rest), (rest, first)):
        parts = {part_name("a", axis, each): module.asarray(whole.take(each, axis)) for each in order}
        found = assemble(parts | {"b": module.ones(2)})
        assert isinstance(found["a"], type(module.ones(1))) and found["b"].shape == (2,)
        np.testing.assert_array_equal(found["a"], whole)


@pytest.mark.long
@pytest.mark.parametrize(
    "pattern", ["encoder/embeddings/.*", "encoder/layers/1/.*", "encoder/layers/[02]/.*"]
)
def test_what_is_split_is_joined_again(pattern):
    task = tiny_task(num_hidden_layers=3)
    adapter = PartlyFrozen(task, lambda name: re.fullmatch(pattern, name) is not None)
    params = unbox(jax.jit(task.init)(jax.random.key(0)))
    trained, frozen = adapter.split(params)
    for found, boxed in (
        (trained, jax.eval_shape(adapter.init, jax.random.key(0))),
        (frozen, adapter.frozen()),
    ):
        shapes = {name: x.shape for name, x in flatten(unbox(boxed)).items()}
        assert shapes == {name: x.shape for name, x in flatten(found).items()}
    joined = adapter.join(trained, frozen)
    jax.tree.map(np.testing.assert_array_equal, joined, params)
    sizes = [sum(x.size for x in jax.tree.leaves(tree)) for tree in (trained, frozen, params)]
    assert sizes[0] + sizes[1] == sizes[2] and min(sizes) > 0


class Taught(Objective):
    """An objective with frozen parameters."""

    def init(self, key):
        return {name: nn.Partitioned(jnp.ones(3), names=(None,)) for name in ("a", "b")}

    def frozen(self):
        return {"teacher": nn.Partitioned(np.full(3, 7.0), names=(None,))}

    def join(self, params, frozen):
        return {"student": params, "teacher": frozen["teacher"]}


def test_adapters_of_adapters_and_of_objectives_with_frozen_parameters():
    inner = PartlyFrozen(Taught(), "a".__eq__)
    outer = PartlyFrozen(inner, "b".__eq__)
    assert flatten(unbox(inner.init(None))).keys() == {"b"} and not outer.init(None)
    names = {"params/b", "objective/params/a", "objective/objective/teacher"}
    assert set(flatten(unbox(outer.frozen()))) == names
    params, frozen = outer.split(unbox(outer.init_model(None)))
    assert set(flatten(frozen)) == {"params/b", "objective/params/a"}  # the teacher has separate values
    state = init_state(outer, optax.identity(), make_mesh(), 0)
    assert set(flatten(state.frozen)) == names and float(state.frozen["params"]["b"][0]) == 1
    frozen["objective"]["objective"] = unbox(Taught().frozen())
    assert set(flatten(outer.join(params, frozen))) == {"student/a", "student/b", "teacher"}
