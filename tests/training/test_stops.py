"""Runs that are stopped by a signal or a stall: what is saved, and how they resume."""

import signal
import subprocess
import sys
import types
from unittest import mock

import jax
import pytest
from jax.experimental import multihost_utils
from support.regression import Recorder, Run, assert_same, at, send

from bert_jax.checkpoint import Checkpointer, saving
from bert_jax.errors import Preempted, StorageError, UserError
from bert_jax.training import preemption, train
from bert_jax.training.preemption import PreemptionGuard, Watchdog

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("step", [1, 8, 11])
def test_sigterm_saves_the_step_and_the_same_command_goes_on(whole, tmp_path, step):
    run = Run(tmp_path / "run")
    run.before_batch = at(step, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match=f"stopped at step {step}, saved; run the same command"):
        run.fit()
    assert run.saved()[-1] == step and run.steps_of("train") == list(range(1, step + 1))
    assert_same(run.fit(), whole[1])
    assert run.logged(f"resumed from step {step} of")
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]


def test_a_signal_before_the_first_step_stops_at_once(whole, tmp_path):
    run = Run(tmp_path / "run")
    run.before_batch = at(0, lambda: send(signal.SIGTERM))

    def stop(number, frame):  # as a command that has nothing to save
        raise Preempted("stopped with nothing to save")

    previous = signal.signal(signal.SIGTERM, stop)
    with pytest.raises(Preempted, match="stopped with nothing to save"):
        run.fit()
    signal.signal(signal.SIGTERM, previous)
    assert run.saved() == []
    assert_same(run.fit(), whole[1])


def test_sigint_says_so_and_saves_too(whole, tmp_path, capfd):
    run = Run(tmp_path / "run")
    run.before_batch = at(7, lambda: send(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 7, saved; run the same command to resume"):
        run.fit()
    assert "stopping: step 7 will be saved; press Ctrl-C again to stop without" in capfd.readouterr().err
    assert run.saved()[-1] == 7
    assert_same(run.fit(), whole[1])


def test_a_file_that_disappears_in_a_step_is_a_failure_that_may_pass(tmp_path):
    for error in (FileNotFoundError(2, "gone", "x"), UserError("x is gone")):
        error.__cause__ = FileNotFoundError(2, "gone", "x")
        run = Run(tmp_path / type(error).__name__)
        run.before_batch = at(3, mock.Mock(side_effect=error))
        with pytest.raises(StorageError, match="gone"):
            run.fit()


def test_a_signal_after_the_last_step_reaches_the_process(tmp_path):
    """Else the next run of a queue would begin as if nobody had asked to stop."""
    run, received = Run(tmp_path / "run", eval__every=0, checkpoint__every=0), []
    previous = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        run.evaluators = [Recorder(lambda: send(signal.SIGTERM))]
        run.fit()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert received == [signal.SIGTERM] and run.saved() == [12]


def test_sigterm_in_an_evaluation_leaves_it_for_later(whole, tmp_path):
    run = Run(tmp_path / "run")
    run.before_eval_batch = at(1, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match="stopped at step 6, saved"):
        run.fit()
    assert run.steps_of("eval") == []
    assert_same(run.fit(), whole[1])
    assert run.lines("eval") == whole[0].lines("eval")


def test_the_limit_of_a_step_does_not_include_restoring_and_saving(monkeypatch, tmp_path):
    is_armed, seen = [False], set()

    def set_armed(value):
        return lambda *unused, **also_unused: is_armed.__setitem__(0, value)

    def watched(function):
        def call(*args, **options):
            seen.add((function.__name__, is_armed[0]))
            return function(*args, **options)

        return call

    stand_in = types.SimpleNamespace(
        dump_traceback_later=set_armed(True), cancel_dump_traceback_later=set_armed(False)
    )
    monkeypatch.setattr(preemption, "faulthandler", stand_in)
    monkeypatch.setattr(train, "Watchdog", lambda seconds: Watchdog(1.0))
    monkeypatch.setattr(saving, "read_state", watched(saving.read_state))
    monkeypatch.setattr(Checkpointer, "_start_saving", watched(Checkpointer._start_saving))
    run = Run(tmp_path / "run", steps=4, eval__every=0, checkpoint__every=2)
    run.before_batch = lambda number: seen.add(("step", is_armed[0]))
    run.fit()
    run.config.steps = 6
    run.fit()
    assert run.logged("resumed from step 4")
    assert seen == {("read_state", False), ("_start_saving", False), ("step", True)}
    assert not is_armed[0]


def test_a_process_without_a_heartbeat_ends_with_its_stacks():
    code = """
import time
from bert_jax.training.preemption import Watchdog
with Watchdog(0.5) as watchdog:
    with watchdog.paused():
        time.sleep(1)
    print("paused", flush=True)
    time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "paused\n") and "in <module>" in done.stderr


def test_a_sigterm_between_two_runs_of_several_processes_stops_the_second(monkeypatch):
    """The stand-in answers as JAX does: yes to the number after all that it has seen before the signal."""
    seen, is_received = [], False

    def reached(number):
        seen.append(number)
        return is_received and number == after + 1

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", reached)
    with PreemptionGuard() as first:
        assert [first.requested() for _ in range(3)] == [False] * 3
    is_received, after = True, max(seen)
    with PreemptionGuard() as second:
        assert second.requested()
    assert seen == list(range(seen[0], seen[0] + 4))
