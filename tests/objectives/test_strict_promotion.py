"""Steps under `jax.numpy_dtype_promotion("strict")`, which refuses sums of two dtypes, traced and not run."""

import itertools

import jax
import numpy as np
import optax
import pytest
from support.models import MASK, SPECIAL, VOCAB, packed_batch, tiny_config
from support.objectives import OBJECTIVES

from bert_jax.objectives.masked_lm import MaskedLM
from bert_jax.objectives.masking import COUNTS, STRATEGIES, MaskingOptions, Vocabulary
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


@pytest.mark.long
def test_logits_in_chunks():
    """As on a CPU, if there are as many predictions as here."""
    options = MaskingOptions(max_predictions=8)
    objective = MaskedLM(tiny_config(num_hidden_layers=1), Vocabulary(VOCAB, MASK, SPECIAL), options)
    trace(objective, packed_batch(rows=64))


@pytest.mark.long
@pytest.mark.parametrize("strategy, count", [*itertools.product(STRATEGIES, COUNTS)])
def test_masks(strategy, count):
    vocabulary = Vocabulary(VOCAB, MASK, SPECIAL, np.arange(VOCAB) % 3 == 0, (1,), np.arange(VOCAB))
    options = MaskingOptions(
        strategy=strategy,
        count=count,
        max_predictions=8,
        exclude_special=True,
        smoothing=0.7 if strategy == "token" else 0.0,
    )
    objective = MaskedLM(tiny_config(num_hidden_layers=1), vocabulary, options)
    jax.eval_shape(lambda rows: objective.prepare(rows, jax.random.key(0), True), packed_batch(rows=2))
