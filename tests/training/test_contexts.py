"""JAX's contexts of the caller, which are those of one thread, hold wherever a run compiles or computes."""

import itertools

import jax
import numpy as np
import pytest
from support.regression import Regression, Run, make_batch

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
