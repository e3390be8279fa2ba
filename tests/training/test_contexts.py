"""JAX's thread-local contexts of the caller hold wherever a run compiles or computes."""

import contextlib
import itertools
import types

import jax
import numpy as np
import pytest
from support.regression import Regression, Run, make_batch

from bert_jax.parallel import sharding
from bert_jax.training.evaluators import EvaluationContext
from bert_jax.training.preemption import PreemptionGuard

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_programs_that_are_compiled_in_the_loop_are_traced_in_the_contexts_of_the_caller(tmp_path):
    """Those of evaluations, and that of the train step for batches of another shape."""
    seen = {}

    class Noting(Regression):
        def loss(self, params, batch, rngs):
            contexts = jax.config.jax_default_matmul_precision, jax.config.jax_numpy_dtype_promotion
            seen.setdefault(len(batch["x"]), set()).add(contexts)
            return super().loss(params, batch, rngs)

    run = Run(tmp_path / "run", steps=6)
    run.task = Noting()
    run.train_data = lambda step, own: (make_batch(n, 8 if n > 2 else 16) for n in itertools.count(step))
    run.eval_data = lambda own, step: (make_batch(1000 + n, 24) for n in range(2))
    with jax.default_matmul_precision("highest"), jax.numpy_dtype_promotion("strict"):
        run.fit()
    assert seen == {rows: {("highest", "strict")} for rows in (8, 16, 24)}
    assert run.steps_of("train") == list(range(1, 7)) and run.steps_of("eval") == [6]


def test_a_nan_of_an_evaluation_is_an_error_if_the_caller_asks_for_one(tmp_path):
    run = Run(tmp_path / "run", steps=6)
    nan = make_batch(1001) | {"y": np.full(16, np.nan, np.float32)}
    run.eval_data = lambda own, step: (batch for batch in (make_batch(1000), nan))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        run.fit()
    assert run.steps_of("eval") == []


def test_a_program_of_an_evaluation_is_compiled_once():
    """JAX keeps the program that was compiled ahead of time for the call after it."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *unused, **also_unused: compiled.append(name) if "backend_compile" in name else None
    )
    mesh, shapes = sharding.make_mesh(), set()
    function = sharding.MeshFunction(jax.jit(lambda params, batch: batch["x"] * params), mesh)
    params = sharding.on_all_devices(np.float32(3), mesh)
    batches = [sharding.global_batch({"x": np.ones(16, np.float32)}, mesh) for _ in range(3)]
    compiled.clear()
    with PreemptionGuard() as guard:
        guard.hold()
        context = EvaluationContext(None, guard, types.SimpleNamespace(paused=contextlib.nullcontext))
        for batch in batches:
            found = context.dispatch(function, params, batch, compiled=shapes)
            np.testing.assert_array_equal(found, np.full(16, 3))
    assert len(compiled) == len(shapes) == 1
