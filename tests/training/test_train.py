"""The loop on a linear model: what a run writes, ways to start it, and when it reads device values."""

import functools
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.array import ArrayImpl
from support import together
from support.regression import WEIGHTS, Regression, Run, assert_same, at, make_batch, send

from bert_jax import checkpoint
from bert_jax.checkpoint import saving
from bert_jax.errors import Preempted, StorageError, UserError
from bert_jax.training import train
from bert_jax.workdir.run_directory import WorkDir

pytestmark = pytest.mark.usefixtures("quick_compilation")


def test_a_run_trains_saves_and_evaluates(whole):
    run, state = whole
    assert int(state.step) == 12 and run.saved() == [8, 12]
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]
    losses = [line["loss"] for line in run.lines("train")]
    assert losses[-1] < 0.5 * losses[0]
    assert run.logged("9 parameters; 8 x cpu (cpu); mesh data=4 fsdp=2 tensor=1")
    assert run.logged("started from scratch") and run.logged("compiled the train step in")


def test_steps_are_saved_when_the_last_save_is_old(whole, tmp_path, monkeypatch):
    """By a clock on which the first step takes 65 s, as if it were compiled, and each other one 20 s."""
    fields = {"checkpoint__every": 0, "checkpoint__minutes": 1.0, "checkpoint__keep": 9}
    run, clock = Run(tmp_path / "run", **fields), [0.0]

    def tick(number):
        clock[0] += 65 if number == 0 else 20

    run.before_batch = tick
    monkeypatch.setattr(train, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    assert_same(run.fit(), whole[1])
    assert run.saved() == [3, 6, 9, 12]


def test_processes_agree_when_the_last_save_is_old_and_ask_seldom(monkeypatch):
    clocks, asked = [0.0, 5e6], []

    def due(process):
        timer, steps = train._SaveTimer(600.0), []
        timer.restart(0)
        for step in range(1, 2500):
            clocks[process] += 1.0 + process  # their clocks differ
            if timer.is_due(step):
                steps.append(step)
                timer.restart(step)
        return steps

    monkeypatch.setattr(train.time, "monotonic", lambda: clocks[jax.process_index()])
    decide = train._SaveTimer._decide
    monkeypatch.setattr(
        train._SaveTimer, "_decide", lambda timer, step: asked.append(step) or decide(timer, step)
    )
    steps = together.run(monkeypatch, *(functools.partial(due, process) for process in range(2)))
    assert steps == [[600, 1200, 1800, 2400]] * 2
    assert len(asked) < 60  # of 2,500 steps


def test_evaluation_is_the_mean_over_all_rows(whole):
    run, state = whole
    x, y = (np.concatenate([make_batch(1000 + n)[name] for n in range(3)]) for name in ("x", "y"))
    error = x @ np.asarray(state.params["encoder"]["w"]) + float(state.params["head"]["b"]) - y
    line = run.lines("eval")[-1]
    assert line["mse_loss"] == pytest.approx(np.mean(error**2), rel=1e-5)
    assert line["close"] == pytest.approx(np.mean(np.abs(error) < 0.5), rel=1e-5)


def test_lines_are_means_over_their_interval(whole, tmp_path):
    run = Run(tmp_path / "run", log_every=5)
    run.fit()
    assert run.steps_of("train") == [1, 5, 10, 12]
    losses = {line["step"]: line["loss"] for line in whole[0].lines("train")}
    expected = [losses[1]] + [np.mean([losses[s] for s in steps]) for steps in ((2, 3, 4, 5), range(6, 11))]
    assert [line["loss"] for line in run.lines("train")][:3] == pytest.approx(expected)


def test_a_finished_run_has_nothing_to_do(whole):
    run, state = whole
    run.output.clear()
    assert_same(run.fit(), state)
    assert run.logged("resumed from step 12") and run.logged("nothing to train")
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]


@pytest.mark.parametrize("first, second", [(False, True), (True, False)])
def test_a_run_resumes_with_another_sharding_of_its_optimizer(whole, tmp_path, first, second):
    run = Run(tmp_path / "run", mesh__shard_optimizer=first)
    run.before_batch = at(8, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted):
        run.fit()
    mine, reference = (checkpoint.verify(each.path / "checkpoints" / "8") for each in (run, whole[0]))
    assert [(name, leaf.shape) for name, leaf in mine.items()] == [
        (name, leaf.shape) for name, leaf in reference.items()
    ]
    run = Run(tmp_path / "run", mesh__shard_optimizer=second)
    state = run.fit()
    assert run.logged("resumed from step 8")
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), state, whole[1])


@pytest.mark.parametrize("fsdp, compares_rows", [(2, False), (1, True)])
def test_gradients_that_the_partitioner_adds_up_have_no_other_dtype(
    tmp_path, monkeypatch, fsdp, compares_rows
):
    monkeypatch.setattr(Regression, "compares_rows", compares_rows)
    run = Run(tmp_path / "run", mesh__reduce_dtype="bfloat16", mesh__fsdp=fsdp)
    with pytest.raises(UserError, match=r"mesh\.reduce_dtype=bfloat16"):
        run.fit()


def test_an_error_in_the_data_ends_the_run_with_what_was_saved(tmp_path):
    run = Run(tmp_path / "run")

    def fail():
        raise UserError("records.tfrecord: corrupt at byte 7")

    run.before_batch = at(6, fail)
    with pytest.raises(UserError, match="corrupt at byte 7"):
        run.fit()
    assert run.saved() == [4]


def test_from_given_weights(tmp_path):
    run = Run(tmp_path / "run", steps=1, checkpoint__every=0)
    run.initial_params = {"encoder": {"w": WEIGHTS}}
    state = run.fit()
    assert run.logged("started from the weights given")
    run = Run(tmp_path / "other", steps=1)
    asked = []

    def load(abstract_params):
        asked.append(abstract_params["encoder"]["w"].sharding.spec)
        return {"encoder": {"w": jnp.asarray(WEIGHTS)}}

    run.initial_params = load
    assert_same(run.fit(), state)
    assert asked == [jax.sharding.PartitionSpec("fsdp")]
    run.fit()  # there is something to resume: the weights are not even loaded
    assert len(asked) == 1


def test_going_on_from_another_run(whole, tmp_path):
    first = Run(tmp_path / "first", steps=5)
    first.fit()
    run = Run(tmp_path / "second", resume_from=str(first.path))
    assert_same(run.fit(), whole[1])
    assert run.logged("resumed from") and run.steps_of("train") == list(range(6, 13))
    assert first.saved() == [4, 5]


def test_a_directory_taken_over_stops_the_run(tmp_path, monkeypatch):
    run = Run(tmp_path / "run")
    held = WorkDir.check_held

    def check(workdir):
        if run.saved():
            raise UserError("taken over")
        held(workdir)

    monkeypatch.setattr(WorkDir, "check_held", check)
    with pytest.raises(UserError, match="taken over"):
        run.fit()


def test_a_failed_save_is_no_success(tmp_path, monkeypatch):
    def fail(*unused, **also_unused):
        raise OSError("No space left on device")

    monkeypatch.setattr(saving.ocp.PyTreeCheckpointHandler, "finalize", fail)
    with pytest.raises(StorageError, match=r"step 12 failed .*No space left on device.*intact steps: none"):
        Run(tmp_path / "run", checkpoint__every=0).fit()  # its only save is the last thing that happens


def test_device_values_are_fetched_at_log_steps_alone(tmp_path, monkeypatch):
    fetched, requested = [], []
    run = Run(tmp_path / "run", log_every=5, eval__every=0, checkpoint__every=0)
    run.before_batch = requested.append

    def counted(function):
        def call(array, *args):
            fetched.append(requested[-1])
            return function(array, *args)

        return call

    # The value of a whole array, and the parts of it, which NumPy reads without asking for a value.
    monkeypatch.setattr(ArrayImpl, "_value", property(counted(ArrayImpl._value.fget)))
    monkeypatch.setattr(ArrayImpl, "addressable_data", counted(ArrayImpl.addressable_data))
    shards = ArrayImpl.__dict__["addressable_shards"]
    monkeypatch.setattr(ArrayImpl, "addressable_shards", property(counted(shards.__get__)))
    train_data = run.train_data

    def watched(step, own):
        fetched.clear()  # of the start
        return train_data(step, own)

    run.train_data = watched
    run.fit()
    # A line is written once the step after its last one is dispatched, when the batch behind it was asked
    # for: of step 1 with batch 2, of step 5 with batch 6, of steps 10 and 12 with batch 11, the last one.
    assert sorted(set(fetched)) == [2, 6, 11]
