"""The watchdog alone and beside an evaluation on records; tests/tasks has that of a task."""

import contextlib
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.evaluations import quiet_context
from support.regression import Regression, Run, at, make_batch

from bert_jax.checkpoint import saving
from bert_jax.parallel import sharding
from bert_jax.training import train
from bert_jax.training.evaluators import EvalStep, RecordEvaluator
from bert_jax.training.state import TrainState
from bert_jax.training.preemption import Watchdog

LIMIT = 0.5


class Slow(Regression):
    """An objective whose program takes longer to compile than the limit."""

    def loss(self, params, batch, rngs):
        time.sleep(2 * LIMIT)
        return super().loss(params, batch, rngs)


@pytest.fixture
def evaluate():
    """A function (objective, batches) that evaluates batches, and returns the watchdog's messages."""

    def evaluate(objective, batches):
        mesh = sharding.make_mesh()
        params = {"encoder": {"w": jnp.zeros(8)}, "head": {"b": jnp.zeros(())}}
        replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        state = jax.device_put(TrainState(jnp.int32(1), params, ()), replicated)
        evaluator = RecordEvaluator(EvalStep(objective, 0, mesh), batches, batch_size=16)
        ended = []
        with Watchdog(LIMIT, ended.append) as watchdog:
            found = evaluator.evaluate(1, state, quiet_context(watchdog))
        assert found and all(map(np.isfinite, found.values()))
        return ended

    return evaluate


@pytest.mark.long
def test_the_program_of_an_evaluation_may_take_longer_to_compile_than_the_limit(evaluate):
    assert evaluate(Slow(), lambda own, step: (make_batch(n, rows) for n, rows in enumerate((16, 8)))) == []


@pytest.mark.long
def test_batches_of_an_evaluation_that_do_not_arrive_end_the_process(evaluate):
    def batches(own, step):
        yield make_batch(0)
        time.sleep(3 * LIMIT)
        yield make_batch(1)

    (message,) = evaluate(Regression(), batches)
    assert message.startswith("no step for") and "--stall_timeout=0.5" in message


def test_a_run_without_progress_is_ended():
    ended = threading.Event()
    said = []
    with Watchdog(0.05, lambda message: (said.append(message), ended.set())):
        assert ended.wait(10)
    assert len(said) == 1 and "no step for" in said[0] and "--stall_timeout=0.05" in said[0]


def test_beats_and_pauses_keep_it_quiet():
    said = []
    with Watchdog(0.2, said.append) as watchdog:
        for _ in range(20):
            threading.Event().wait(0.02)
            watchdog.heartbeat()
        with watchdog.paused():
            threading.Event().wait(0.5)
    assert said == []


def test_a_pause_may_end_while_the_limit_is_checked():
    class Ending(Watchdog):
        """Its pause ends at the moment at which the thread asks for it."""

        pause, count = contextlib.ExitStack(), 0

        @property
        def _paused(self):
            if threading.current_thread() is self._thread:
                self.pause.close()
            return self.count

        @_paused.setter
        def _paused(self, count):
            self.count = count

    said = []
    watchdog = Ending(0.2, said.append)
    watchdog.pause.enter_context(watchdog.paused())
    watchdog._last -= 1000  # the pause has been longer than the limit
    with watchdog:
        time.sleep(0.15)
    assert said == [] and not watchdog.count


def test_none_is_watched_with_0():
    with Watchdog(0, lambda message: None) as watchdog:
        assert not watchdog._thread.is_alive()


@pytest.fixture
def limited(whole, monkeypatch, tmp_path):
    """A run with a limit that is shorter than the delays of the tests, and the messages of its watchdog."""
    ended = []
    monkeypatch.setattr(loop, "Watchdog", lambda seconds: Watchdog(4 * LIMIT, ended.append))
    return Run(tmp_path / "run", steps=4, eval__every=0, checkpoint__every=2), ended


def slowed(function):
    def slow(*args, **kwargs):
        time.sleep(8 * LIMIT)
        return function(*args, **kwargs)

    return slow


@pytest.mark.long
def test_restoring_and_saving_may_take_longer_than_the_limit(monkeypatch, limited):
    run, ended = limited
    handler = saving.ocp.PyTreeCheckpointHandler
    monkeypatch.setattr(handler, "finalize", slowed(handler.finalize))  # orbax calls it in the background
    monkeypatch.setattr(saving, "read_state", slowed(saving.read_state))
    run.fit()
    run.config.steps = 6
    run.fit()
    assert ended == [] and run.logged("resumed from step 4") and run.saved()[-1] == 6


@pytest.mark.long
def test_a_step_that_does_not_come_ends_a_run(limited):
    run, ended = limited
    run.before_batch = at(3, lambda: time.sleep(8 * LIMIT))
    run.fit()
    assert len(ended) == 1
