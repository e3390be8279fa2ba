"""Steps under `jax.numpy_dtype_promotion("strict")`, which refuses sums of two dtypes, traced and not run."""

import jax
import numpy as np
import optax
import pytest
from support.objectives import OBJECTIVES

from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state
from bert_jax.training.step import make_eval_step, make_train_step


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"):
        yield


def trace(objective, batch):
    """Traces a step of training and one of evaluation."""
    mesh = sharding.make_mesh(1, 1, 1, devices=jax.devices()[:1])
    state = abstract_state(objective, optax.identity(), mesh)
    step = make_train_step(objective, optax.identity(), lambda step: 1e-3)
    frozen = () if state.frozen is None else (state.frozen,)
    with sharding.on_mesh(mesh):
        jax.eval_shape(step, state, batch, np.uint32(0))
        jax.eval_shape(make_eval_step(objective), state.params, batch, np.int32(0), np.uint32(0), *frozen)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_of_each_objective(name, dtype):
    make, batch = OBJECTIVES[name]
    trace(make(dtype=dtype), batch())
