"""Steps that are not finite are skipped, and a run that skips too many ends."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.regression import Run, at, send, spoil

from bert_jax import checkpoint
from bert_jax.errors import Preempted, UserError

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path):
    run = Run(tmp_path / "run", eval__every=0)
    spoil(run, {3, 4})
    state = run.fit()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params)))
    assert [line["skipped"] for line in run.lines("train")] == [0, 0, 0, 1, 1] + [0] * 7
    assert run.lines("train")[3]["loss"] is None
    assert sum("warning: step 4 is skipped" in line for line in run.output) == 1


def test_too_many_skipped_steps_are_an_error_which_names_a_checkpoint(tmp_path):
    run = Run(tmp_path / "run", steps=50, checkpoint__every=2)
    spoil(run, {6, 7, 8})
    for _ in range(2):  # the same command comes to the same steps
        with pytest.raises(UserError, match=r"steps 7 to 9 were skipped: loss.* from step 4"):
            run.fit()
    source, params, _ = checkpoint.read_stored(run.path)
    assert source.endswith("/6") and np.isfinite(params["encoder/w"]).all()


@pytest.mark.parametrize("stop", [10, 11], ids=["while steps are skipped", "at the limit"])
def test_skipped_steps_are_counted_across_stops(tmp_path, stop):
    run = Run(tmp_path / "run", steps=14, log_every=100)
    spoil(run, {8, 9, 10})
    run.before_batch = at(stop, lambda: send(signal.SIGTERM))
    for error in (Preempted, UserError) if stop == 10 else (UserError,):
        with pytest.raises(error, match="saved" if error is Preempted else "steps 9 to 11 were skipped"):
            run.fit()


@pytest.mark.parametrize("spoiled", [{0, 1}, {1}], ids=["no step", "the last step"])
def test_a_run_that_ends_without_a_finite_loss_is_an_error(tmp_path, spoiled):
    run = Run(tmp_path / "run", steps=2)
    spoil(run, spoiled)
    with pytest.raises(UserError, match="step 2 has the parameters of step "):
        run.fit()
    assert run.saved() == [2]


def test_a_step_that_is_skipped_is_not_saved_and_the_next_one_is(tmp_path):
    run = Run(tmp_path / "run", eval__every=0, checkpoint__keep=9)
    spoil(run, {3, 4, 11})
    run.config.log_every = 5
    run.fit()
    assert run.saved() == [6, 8, 12]
    assert run.logged(
        "warning: the last 1 step was skipped; what is saved as step 12 has the parameters of step 11"
    )


@pytest.mark.parametrize("rate", [np.nan, 3e38])
def test_a_step_whose_new_parameters_are_not_finite_is_skipped(tmp_path, rate):
    run = Run(tmp_path / "run")
    run.optimizer = run.optimizer[0], lambda step: jnp.where(step == 3, rate, 0.01)
    run.config.checkpoint.keep = 9
    state = run.fit()
    assert [line["step"] for line in run.lines("train") if line["skipped"]] == [4]
    assert run.saved() == [5, 8, 12]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state)))
