"""Steps that are not finite are skipped, and a run that skips too many goes back once."""

import itertools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.regression import Run, assert_same, at, make_batch, send, spoil

from bert_jax import checkpoint
from bert_jax.checkpoint import saving
from bert_jax.errors import Preempted, UserError
from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state

pytestmark = pytest.mark.usefixtures("quick_compilation")


def run_state(run):
    return abstract_state(run.task, optax.trace(0.9), sharding.make_mesh(**run.config.mesh))


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path):
    run = Run(tmp_path / "run", eval__every=0)
    spoil(run, {3, 4})
    state = run.fit()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params)))
    assert [line["skipped"] for line in run.lines("train")] == [0, 0, 0, 1, 1] + [0] * 7
    assert run.lines("train")[3]["loss"] is None
    assert sum("warning: step 4 is skipped" in line for line in run.output) == 1


def test_after_too_many_skipped_steps_the_run_goes_back_once_and_then_gives_up(tmp_path):
    run = Run(tmp_path / "run", steps=50)
    spoil(run, range(5, 50))
    message = "steps 5 to 7 were skipped: loss.*; the run had gone back to step 4 once already"
    with pytest.raises(UserError, match=message):
        run.fit()
    assert run.logged("warning: steps 6 to 8 were skipped: ") and run.logged(
        "going back to step 4, without the next 4"
    )
    step, state = checkpoint.Checkpointer(run.path / "checkpoints").restore_latest(run_state(run))
    assert step == 4 and np.isfinite(np.asarray(state.params["encoder"]["w"])).all()
    with pytest.raises(UserError, match=message):  # the same command knows that it has been there
        run.fit()


@pytest.fixture(scope="module")
def recovered(tmp_path_factory):
    """The state of a run that leaves out batches 4 to 7."""
    run = Run(tmp_path_factory.mktemp("recovered") / "run")
    run.train_data = lambda step, own: (make_batch(n if n < 4 else n + 4) for n in itertools.count(step))
    return run.fit()


@pytest.mark.parametrize("log_every", [1, 5])
def test_a_run_that_went_back_leaves_out_the_batches_that_failed(tmp_path, recovered, log_every):
    run = Run(tmp_path / "run", log_every=log_every)
    spoil(run, {5, 6, 7})
    assert_same(run.fit(), recovered)
    assert run.steps_of("train")[-1] == 12 and run.saved() == [8, 12]
    assert json.loads((run.path / "recovery.json").read_text()) == {
        "step": 4,
        "left_out": 4,
        "complete": True,
    }


@pytest.mark.parametrize("batch", [4, 9])
def test_a_run_that_went_back_and_was_stopped_goes_on_with_the_same_batches(tmp_path, recovered, batch):
    run = Run(tmp_path / "run")
    spoil(run, {5, 6, 7})
    run.before_batch = at(batch, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted):
        run.fit()
    run.output.clear()
    assert_same(run.fit(), recovered)
    assert not run.logged("going back") or batch == 4


@pytest.mark.long
@pytest.mark.parametrize(
    "every, stops, step, left_out",
    [(4, [6], 6, 5), (4, [10], 4, 7), (4, [11], 4, 7), (0, [9, 10], 10, 1)],
    ids=["before", "while steps are skipped", "at the limit", "without an older checkpoint"],
)
def test_skipped_steps_are_counted_across_stops(tmp_path, every, stops, step, left_out):
    run = Run(tmp_path / "run", steps=14, checkpoint__every=every, checkpoint__keep=9, log_every=5)
    spoil(run, {8, 9, 10})
    for stop in stops:
        run.before_batch = at(stop, lambda: send(signal.SIGTERM))
        with pytest.raises(
            Preempted, match="not saved: steps 9 to 11 were skipped" if stop == 11 else "saved"
        ):
            run.fit()
    run.config.log_every = 100
    assert run.fit().skipped == 0
    assert run.logged("steps 9 to 11 were skipped: ")
    assert run.logged(f"going back to step {step}, without the next {left_out} batch")


@pytest.mark.parametrize("spoiled, log_every", [({0, 1}, 1), ({1}, 1)], ids=["no step", "the last step"])
def test_a_run_that_ends_without_a_finite_loss_is_an_error(tmp_path, spoiled, log_every):
    run = Run(tmp_path / "run", steps=2, log_every=log_every)
    spoil(run, spoiled)
    with pytest.raises(UserError, match="step 2 has the parameters of step "):
        run.fit()
    assert run.saved() == [2]


def test_checkpoints_after_the_good_one_are_set_aside_even_if_the_run_is_killed_then(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", checkpoint__every=1)
    spoil(run, {5, 6, 7})
    abandon, steps = saving.Checkpointer.abandon_after, []

    def killed(checkpointer, step):
        steps.append(step)
        raise KeyboardInterrupt

    monkeypatch.setattr(saving.Checkpointer, "abandon_after", killed)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.saved() == [4, 5] and steps == [4]  # 5, whose next step failed, is not known to be good
    monkeypatch.setattr(saving.Checkpointer, "abandon_after", abandon)
    run.config.steps = 7
    state = run.fit()
    assert run.logged("resumed from step 4") and run.logged("is set aside as abandoned-5")
    assert run.saved() == [6, 7] and int(state.step) == 7


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
