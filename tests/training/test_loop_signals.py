"""The loop that is stopped by a signal: what is saved, what the message says, and how it goes on."""

import signal
import threading
import time
import types

import pytest
from support.regression import Recorder, Run, assert_same, at, send, stopping_at_once

from bert_jax import checkpoint
from bert_jax.errors import Preempted
from bert_jax.training import train

pytestmark = pytest.mark.usefixtures("quick_compilation")

_HANDLERS = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


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
    with stopping_at_once(), pytest.raises(Preempted, match="stopped with nothing to save"):
        run.fit()
    assert run.saved() == []
    assert_same(run.fit(), whole[1])


def test_sigint_says_so_and_saves_too(whole, tmp_path, capfd):
    run = Run(tmp_path / "run")
    run.before_batch = at(7, lambda: send(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match="stopped at step 7, saved; run the same command to go on"):
        run.fit()
    assert "stopping: step 7 will be saved; press Ctrl-C again to stop without" in capfd.readouterr().err
    assert run.saved()[-1] == 7
    assert_same(run.fit(), whole[1])


def test_sigint_twice_does_not_wait(tmp_path):
    run = Run(tmp_path / "run")
    run.before_batch = at(7, lambda: [send(signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt, match="stopped at step 7 without saving it"):
        run.fit()
    assert run.saved() == [4]


@pytest.mark.parametrize("more, saved", [(1, [4, 7]), (2, [4])])
def test_a_second_sigint_in_a_save_is_answered_and_a_third_ends_it(tmp_path, capfd, monkeypatch, more, saved):
    """The first comes before batch 7, the others while step 7 is being saved."""
    run = Run(tmp_path / "run")
    run.before_batch = at(7, lambda: send(signal.SIGINT))
    save = checkpoint.Checkpointer.save

    def interrupted(self, step, state):
        if step == 7:
            for _ in range(more):
                send(signal.SIGINT)
        save(self, step, state)

    monkeypatch.setattr(checkpoint.Checkpointer, "save", interrupted)
    with pytest.raises(KeyboardInterrupt, match="step 7, saved" if more == 1 else "step 7 without saving"):
        run.fit()
    assert run.saved() == saved
    assert "step 7 is being saved; press Ctrl-C again to stop without it" in capfd.readouterr().err


def test_a_stop_request_does_not_wait_for_a_compilation(tmp_path, monkeypatch):
    """The step is compiled again for batches of another shape, for longer than anyone waits."""
    run = Run(tmp_path / "run")
    released, compiled = threading.Event(), []

    class Endless(loop.CompiledStep):
        def compile(self, batch, stop, *paused):
            if compiled:
                threading.Timer(0.1, send, [signal.SIGTERM]).start()
                stop.compile(types.SimpleNamespace(compile=lambda: released.wait(60)))
            compiled.append(batch)
            return super().compile(batch, stop, *paused)

    monkeypatch.setattr(loop, "CompiledStep", Endless)
    began = time.monotonic()
    with pytest.raises(Preempted, match="stopped at step 0, nothing to save"):
        run.fit()
    assert time.monotonic() - began < 30
    released.set()


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


def test_handlers_are_given_back(whole):
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == _HANDLERS


def test_sigterm_in_an_evaluation_leaves_it_for_later(whole, tmp_path):
    run = Run(tmp_path / "run")
    run.before_eval_batch = at(1, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match="stopped at step 6, saved"):
        run.fit()
    assert run.steps_of("eval") == []
    assert_same(run.fit(), whole[1])
    assert run.lines("eval") == whole[0].lines("eval")


def test_sigterm_in_the_evaluation_that_was_left(whole, tmp_path):
    run = Run(tmp_path / "run")
    for message in ("stopped at step 6, saved", "stopped with nothing to save"):
        run.before_eval_batch = at(1, lambda: send(signal.SIGTERM))
        with stopping_at_once(), pytest.raises(Preempted, match=message):
            run.fit()
    assert_same(run.fit(), whole[1])
    assert run.lines("eval") == whole[0].lines("eval")
