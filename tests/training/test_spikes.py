"""The rule that skips steps whose loss or gradient is a spike."""

import itertools
import signal

import ml_collections
import numpy as np
import pytest
from support.regression import Run, assert_same, at, make_batch, send

from bert_jax import checkpoint
from bert_jax.errors import Preempted, UserError

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPIKES = {"factor": 5.0, "window": 4, "metric": "loss"}


def with_spikes(run, metric="loss"):
    run.config.spikes = ml_collections.ConfigDict(SPIKES | {"metric": metric})

    def train_data(step, own):
        for number in itertools.count(step):
            run.before_batch(number)
            batch = make_batch(number)
            yield batch | {"y": batch["y"] * {2: 3, 7: 100}.get(number, 1)}

    run.train_data = train_data
    return run


@pytest.fixture(scope="module")
def spiked(tmp_path_factory):
    run = with_spikes(Run(tmp_path_factory.mktemp("spiked") / "run", log_every=3))
    return run, run.fit()


def test_a_spike_is_skipped_once_there_is_a_window(spiked):
    run, state = spiked
    lines = {line["step"]: line for line in run.lines("train")}
    assert {step: line["skipped"] for step, line in lines.items()} == {1: 0, 3: 0, 6: 0, 9: 1, 12: 0}
    assert lines[9]["spike"] == 1 and lines[9]["loss"] < lines[3]["loss"]  # with batch 2, and without 7
    assert run.logged("warning: step 8 is skipped: a spike by the rule of spikes.factor")
    assert state.recent.shape == (4,) and np.isfinite(np.asarray(state.recent)).all()


@pytest.mark.parametrize("step", [2, 7, 8, 9])
def test_a_rule_for_spikes_resumes_exactly(spiked, tmp_path, step):
    run = with_spikes(Run(tmp_path / "run", log_every=3))
    run.before_batch = at(step, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted):
        run.fit()
    assert_same(run.fit(), spiked[1])


def test_a_spike_of_the_gradient(tmp_path):
    run = with_spikes(Run(tmp_path / "run"), "grad_norm")
    run.fit()
    assert [line["step"] for line in run.lines("train") if line["spike"]] == [8]


@pytest.mark.long
def test_a_rule_for_spikes_is_turned_on_and_off_between_two_starts(tmp_path):
    run = with_spikes(Run(tmp_path / "run", steps=4, checkpoint__every=0))
    run.config.spikes.factor = 0.0
    assert run.fit().recent is None
    assert not any("recent" in name for name in checkpoint.describe(run.path / "checkpoints" / "4"))
    run.config.spikes.factor, run.config.steps = 5.0, 6
    state = run.fit()
    assert run.logged("resumed from step 4") and np.isfinite(np.asarray(state.recent)).sum() == 2
    run.config.spikes.window, run.config.steps = 3, 7
    state = run.fit()
    assert (
        run.logged("resumed from step 6") and np.isfinite(np.asarray(state.recent)).tolist().count(True) == 1
    )
    assert state.recent.shape == (3,)
    run.config.spikes.window, run.config.spikes.factor, run.config.steps = 9, 0.0, 8
    assert run.fit().recent is None and run.logged("resumed from step 7")


@pytest.mark.parametrize("field, value, words", [("factor", 0.5, "more than 1"), ("metric", "x", "unknown")])
def test_a_rule_for_spikes_that_cannot_be(tmp_path, field, value, words):
    run = with_spikes(Run(tmp_path / "run"))
    run.config.spikes[field] = value
    with pytest.raises(UserError, match=f"spikes.{field}=.*{words}"):
        run.fit()
