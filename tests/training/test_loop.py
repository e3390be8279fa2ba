"""The loop on a linear model: ways to start, stop and go on; skipped steps; evaluation; what is written."""

import contextlib
import itertools
import json
import os
import signal
import threading
import time

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest
from jax._src.array import ArrayImpl
from support import processes as training_support

from bert_jax import checkpoint
from bert_jax.checkpoint import saving
from bert_jax.errors import Preempted, StorageError, UserError
from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.training import loop
from bert_jax.training.evaluators import BestCheckpoint, Evaluator, RecordEvaluator
from bert_jax.training.metrics.metrics_writer import MetricsWriter
from bert_jax.training.preemption import Interrupted
from bert_jax.training.state import abstract_state
from bert_jax.workdir.run_directory import WorkDir

_HANDLERS = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))

WEIGHTS = np.linspace(-1, 1, 8).astype(np.float32)


class Regression(Objective):
    """y = x w + b under squared error; a prepared batch is the batch."""

    def init(self, key):
        names = nn.Partitioned(jax.random.normal(key, (8,)), names=("embed",))
        return {"encoder": {"w": names}, "head": {"b": nn.Partitioned(jnp.zeros(()), names=())}}

    def prepare(self, batch, key, train):
        return batch

    def weights(self, batch):
        return {"mse": jnp.sum(batch["tokens"]).astype(jnp.float32)}

    def loss(self, params, batch, rngs):
        error = batch["x"] @ params["encoder"]["w"] + params["head"]["b"] - batch["y"]
        weight = batch["tokens"].astype(jnp.float32)
        close = jnp.sum((jnp.abs(error) < 0.5) * weight)
        return {"mse": (jnp.sum(weight * error**2), weight.sum())}, {"close": (close, weight.sum())}


def make_batch(number, rows=16):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 8)).astype(np.float32)
    return {"x": x, "y": x @ WEIGHTS + 1, "tokens": np.ones(rows, np.int32)}


class Run:
    """One work directory and what is trained in it."""

    def __init__(self, path, **changes):
        self.path = path
        self.config = ml_collections.ConfigDict(
            {
                "seed": 0, "steps": 12, "batch_size": 16, "accumulate_steps": 1, "log_every": 1,
                "max_skipped_steps": 3, "resume_from": "", "mesh": {"data": -1, "fsdp": 2, "tensor": 1},
                "checkpoint": {"every": 4, "keep": 2, "keep_every": 0}, "eval": {"every": 6, "batches": 0},
                "model": {"dtype": "float32"},
            }
        )  # fmt: skip
        for name, value in changes.items():
            self.config.update_from_flattened_dict({name.replace("__", "."): value})
        self.task, self.output, self.evaluators = Regression(), [], []
        self.before_batch = self.before_eval_batch = lambda number: None
        self.options = {}

    def train_data(self, step, own):
        while True:
            self.before_batch(step)
            yield make_batch(step)
            step += 1

    def eval_data(self, own):
        for number in range(3):
            self.before_eval_batch(number)
            yield make_batch(1000 + number)

    def fit(self):
        writer = MetricsWriter(self.path, total_steps=self.config.steps, terminal=False)
        writer.message = self.output.append
        with WorkDir(self.path) as workdir:
            try:
                mesh = sharding.make_mesh(**self.config.mesh)
                records = RecordEvaluator(
                    self.task,
                    self.config.seed,
                    self.eval_data,
                    mesh,
                    batch_size=self.config.batch_size,
                    every=self.config.eval.every,
                )
                return loop.fit(
                    workdir=workdir, config=self.config, objective=self.task, train_data=self.train_data,
                    mesh=mesh, evaluators=[records, *self.evaluators], flops_per_step=0, writer=writer,
                    **{"optimizer": optax.trace(0.9), "schedule": lambda step: 0.01} | self.options,
                )  # fmt: skip
            finally:
                writer.close()

    def lines(self, kind):
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def steps_of(self, kind):
        return [line["step"] for line in self.lines(kind)]

    def saved(self):
        paths = (self.path / "checkpoints").iterdir()
        return sorted(int(path.name) for path in paths if path.name.isdigit())

    def said(self, text):
        return any(text in line for line in self.output)


class Recorder(Evaluator):
    """Notes the steps at which it is called, and does `action`."""

    name = "recorder"

    def __init__(self, action=lambda: None, every=0, until=99):
        self.every, self._action, self._until, self.steps = every, action, until, []

    def evaluate(self, step, state, context):
        assert int(state.step) == step
        self.steps.append(step)
        self._action()
        return {"score": step / 2}

    def should_stop(self):
        return len(self.steps) >= self._until


def assert_same(one, other):
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), one, other)


def send(number):
    """Sends a signal to this process; Python's handler runs before this returns."""
    os.kill(os.getpid(), number)


def at(step, action):
    """Does `action` the first time that it is asked about `step`."""
    todo = [action]
    return lambda number: todo and number == step and todo.pop()()


@pytest.fixture(scope="module", autouse=True)
def programs():
    with training_support.quick_compilation():
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of 12 steps: (run, final state)."""
    run = Run(tmp_path_factory.mktemp("whole") / "run")
    return run, run.fit()


def test_a_run_trains_saves_and_evaluates(whole):
    run, state = whole
    assert int(state.step) == 12 and run.saved() == [8, 12]
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]
    losses = [line["loss"] for line in run.lines("train")]
    assert losses[-1] < 0.5 * losses[0]
    assert run.said("9 parameters; 8 x cpu (cpu); mesh data=4 fsdp=2 tensor=1")
    assert run.said("started from scratch") and run.said("compiled the train step in")


def test_the_line_of_a_step_has_its_metrics(whole):
    run, _ = whole
    line = run.lines("train")[-1]
    assert {"loss", "mse_loss", "close", "grad_norm", "learning_rate", "skipped"} <= set(line)
    assert line["learning_rate"] == pytest.approx(0.01) and line["tokens_per_second"] > 0


def test_the_state_is_sharded(whole):
    _, state = whole
    assert state.params["encoder"]["w"].sharding.spec == jax.sharding.PartitionSpec("fsdp")
    assert state.opt_state.trace["encoder"]["w"].sharding.spec == jax.sharding.PartitionSpec("fsdp")


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
    assert run.said("resumed from step 12") and run.said("nothing to train")
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]


@pytest.mark.parametrize("step", [1, 8, 11])
def test_sigterm_saves_the_step_and_the_same_command_goes_on(whole, tmp_path, step):
    run = Run(tmp_path / "run")
    run.before_batch = at(step, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match=f"stopped at step {step}, saved; run the same command"):
        run.fit()
    assert run.saved()[-1] == step and run.steps_of("train") == list(range(1, step + 1))
    assert_same(run.fit(), whole[1])
    assert run.said(f"resumed from step {step} of")
    assert run.steps_of("train") == list(range(1, 13)) and run.steps_of("eval") == [6, 12]


@contextlib.contextmanager
def stopping_at_once():
    """Inside, SIGTERM does what it does in a command that has nothing to save."""

    def stop(number, frame):
        raise Preempted("stopped with nothing to save")

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


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
        def compile(self, batch, stop):
            if compiled:
                threading.Timer(0.1, send, [signal.SIGTERM]).start()
                stop.wait_for(lambda: released.wait(60))
            compiled.append(batch)
            return super().compile(batch, stop)

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


def test_an_error_in_the_data_ends_the_run_with_what_was_saved(tmp_path):
    run = Run(tmp_path / "run")

    def fail():
        raise UserError("records.tfrecord: corrupt at byte 7")

    run.before_batch = at(6, fail)
    with pytest.raises(UserError, match="corrupt at byte 7"):
        run.fit()
    assert run.saved() == [4]


def spoil(run, steps):
    """Makes the targets of the batches of these steps NaN."""

    def train_data(step, own):
        while True:
            run.before_batch(step)
            batch = make_batch(step)
            yield batch | {"y": batch["y"] * np.nan} if step in steps else batch
            step += 1

    run.train_data = train_data


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path):
    run = Run(tmp_path / "run", eval__every=0)
    spoil(run, {3, 4})
    state = run.fit()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params)))
    assert [line["skipped"] for line in run.lines("train")] == [0, 0, 0, 1, 1] + [0] * 7
    assert run.lines("train")[3]["loss"] is None
    assert sum("warning: step 4 is skipped" in line for line in run.output) == 1


def test_skipped_steps_stay_out_of_the_means(tmp_path):
    run = Run(tmp_path / "run", log_every=6)
    spoil(run, {3})
    run.fit()
    line = run.lines("train")[1]
    assert line["skipped"] == 1 and np.isfinite(line["loss"])


def test_after_too_many_skipped_steps_the_run_goes_back_once_and_then_gives_up(tmp_path):
    run = Run(tmp_path / "run", steps=50)
    spoil(run, range(5, 50))
    told = "steps 5 to 7 were skipped: loss.* not finite; the run had gone back to step 4 once already"
    with pytest.raises(UserError, match=told):
        run.fit()
    assert run.said("warning: steps 6 to 8 were skipped: ") and run.said(
        "going back to step 4, without the next 4"
    )
    step, state = checkpoint.Checkpointer(run.path / "checkpoints").restore_latest(run_state(run))
    assert step == 4 and np.isfinite(np.asarray(state.params["encoder"]["w"])).all()
    with pytest.raises(UserError, match=told):  # the same command knows that it has been there
        run.fit()


@pytest.fixture(scope="module")
def detoured(tmp_path_factory):
    """The state of a run that leaves out batches 4 to 7."""
    run = Run(tmp_path_factory.mktemp("detoured") / "run")
    run.train_data = lambda step, own: (make_batch(n if n < 4 else n + 4) for n in itertools.count(step))
    return run.fit()


@pytest.mark.parametrize("log_every", [1, 5])
def test_a_run_that_went_back_leaves_out_the_batches_that_failed(tmp_path, detoured, log_every):
    run = Run(tmp_path / "run", log_every=log_every)
    spoil(run, {5, 6, 7})
    assert_same(run.fit(), detoured)
    assert run.steps_of("train")[-1] == 12 and run.saved() == [8, 12]
    assert json.loads((run.path / "recovery.json").read_text()) == {
        "step": 4,
        "left_out": 4,
        "complete": True,
    }


@pytest.mark.parametrize("batch", [4, 9, 12])
def test_a_run_that_went_back_and_was_stopped_goes_on_with_the_same_batches(tmp_path, detoured, batch):
    run = Run(tmp_path / "run")
    spoil(run, {5, 6, 7})
    run.before_batch = at(batch, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted):
        run.fit()
    run.output.clear()
    assert_same(run.fit(), detoured)
    assert not run.said("going back") or batch == 4


def test_checkpoints_after_the_good_one_are_set_aside_even_if_the_run_is_killed_then(tmp_path, monkeypatch):
    run = Run(tmp_path / "run", checkpoint__every=1)
    spoil(run, {5, 6, 7})
    abandon, told = saving.Checkpointer.abandon_after, []

    def killed(checkpointer, step):
        told.append(step)
        raise KeyboardInterrupt

    monkeypatch.setattr(saving.Checkpointer, "abandon_after", killed)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.saved() == [4, 5] and told == [4]  # 5, whose next step failed, is not known to be good
    monkeypatch.setattr(saving.Checkpointer, "abandon_after", abandon)
    run.config.steps = 7
    state = run.fit()
    assert run.said("resumed from step 4") and run.said("is set aside as abandoned-5")
    assert run.saved() == [6, 7] and int(state.step) == 7


def test_a_run_that_has_saved_nothing_begins_anew(tmp_path):
    run = Run(tmp_path / "run", checkpoint__every=0)
    spoil(run, {0, 1, 2})
    run.fit()
    assert run.said("going back to step 0, without the next 3") and run.saved() == [12]
    assert not any(line["skipped"] for line in run.lines("train"))


def test_a_step_that_is_skipped_is_not_saved_and_the_next_one_is(tmp_path):
    run = Run(tmp_path / "run", eval__every=0, checkpoint__keep=9)
    spoil(run, {3, 4, 11})
    run.fit()
    assert run.saved() == [6, 8, 12]
    assert run.said(
        "warning: the last 1 steps were skipped; what is saved as step 12 has the parameters of step 11"
    )


def test_a_run_that_is_stopped_while_steps_are_skipped_saves_none_of_them(tmp_path):
    run = Run(tmp_path / "run", eval__every=0)
    spoil(run, {4, 5})
    run.before_batch = at(6, lambda: send(signal.SIGTERM))
    with pytest.raises(Preempted, match="stopped at step 6, which was skipped; step 4 is saved"):
        run.fit()
    assert run.saved() == [4]


@pytest.mark.parametrize("rate", [np.nan, np.inf, 3e38])
def test_a_step_whose_new_parameters_are_not_finite_is_skipped(tmp_path, rate):
    run = Run(tmp_path / "run")
    run.options = {"schedule": lambda step: jnp.where(step == 3, rate, 0.01)}
    run.config.checkpoint.keep = 9
    state = run.fit()
    assert [line["step"] for line in run.lines("train") if line["skipped"]] == [4]
    assert run.saved() == [5, 8, 12]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state)))


def test_a_step_whose_new_optimizer_state_is_not_finite_is_skipped(tmp_path):
    def update(updates, count, params):
        return updates, jnp.where(count == 3, jnp.inf, count + 1)

    run = Run(tmp_path / "run", steps=5)
    run.options = {"optimizer": optax.GradientTransformation(lambda params: jnp.float32(0), update)}
    assert run.fit().opt_state == 3
    assert [line["skipped"] for line in run.lines("train")] == [0, 0, 0, 1, 1]


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
    assert run.said("warning: step 8 is skipped: a spike by the rule of spikes.factor")
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


def test_a_rule_for_spikes_is_turned_on_and_off_between_two_starts(tmp_path):
    run = with_spikes(Run(tmp_path / "run", steps=4, checkpoint__every=0))
    run.config.spikes.factor = 0.0
    assert run.fit().recent is None
    assert not any("recent" in name for name in checkpoint.describe(run.path / "checkpoints" / "4"))
    run.config.spikes.factor, run.config.steps = 5.0, 6
    state = run.fit()
    assert run.said("resumed from step 4") and np.isfinite(np.asarray(state.recent)).sum() == 2
    run.config.spikes.factor, run.config.steps = 0.0, 7
    assert run.fit().recent is None and run.said("resumed from step 6")


@pytest.mark.parametrize("field, value, told", [("factor", 0.5, "more than 1"), ("metric", "x", "unknown")])
def test_a_rule_for_spikes_that_cannot_be(tmp_path, field, value, told):
    run = with_spikes(Run(tmp_path / "run"))
    run.config.spikes[field] = value
    with pytest.raises(UserError, match=f"spikes.{field}=.*{told}"):
        run.fit()


def run_state(run):
    return abstract_state(run.task, optax.trace(0.9), sharding.make_mesh(**run.config.mesh))


def test_an_unexpected_initial_loss_is_told(tmp_path, whole):
    first = whole[0].lines("train")[0]["loss"]
    for expected, told in ((first * 1.02, False), (first * 1.2, True)):
        run = Run(tmp_path / f"{expected}", steps=3)
        run.task.initial_loss = expected
        run.fit()
        assert run.said("warning: the untrained model's loss is") == told


def test_a_resumed_run_has_no_initial_loss(tmp_path):
    run = Run(tmp_path / "run", steps=3)
    run.fit()
    run.task.initial_loss = 1e6
    run.config.steps = 6
    run.fit()
    assert not run.said("warning")


def test_from_given_weights(tmp_path):
    run = Run(tmp_path / "run", steps=1, checkpoint__every=0)
    run.options = {"initial_params": {"encoder": {"w": WEIGHTS}}}
    state = run.fit()
    assert run.said("started from the weights given")
    run = Run(tmp_path / "other", steps=1)
    asked = []

    def load(abstract_params):
        asked.append(abstract_params["encoder"]["w"].sharding.spec)
        return {"encoder": {"w": jnp.asarray(WEIGHTS)}}

    run.options = {"initial_params": load}
    assert_same(run.fit(), state)
    assert asked == [jax.sharding.PartitionSpec("fsdp")]
    run.fit()  # there is something to resume: the weights are not even loaded
    assert len(asked) == 1


def test_going_on_from_another_run(whole, tmp_path):
    first = Run(tmp_path / "first", steps=5)
    first.fit()
    run = Run(tmp_path / "second", resume_from=str(first.path))
    assert_same(run.fit(), whole[1])
    assert run.said("went on from") and run.steps_of("train") == list(range(6, 13))
    assert first.saved() == [4, 5]


def test_a_step_with_accumulation_goes_on_the_same_batches(whole, tmp_path):
    state = Run(tmp_path / "run", accumulate_steps=2).fit()
    expected = np.asarray(whole[1].params["encoder"]["w"])
    np.testing.assert_allclose(np.asarray(state.params["encoder"]["w"]), expected, rtol=1e-5)


def test_a_batch_that_does_not_divide(tmp_path):
    with pytest.raises(UserError, match="batch_size=12 must be a multiple"):
        Run(tmp_path / "run", batch_size=12).fit()


def test_an_evaluator_of_ones_own_has_its_own_steps_and_lines(whole, tmp_path):
    run, recorder = Run(tmp_path / "run"), Recorder(every=5)
    run.evaluators = [recorder]
    run.fit()
    assert recorder.steps == [5, 10, 12] and run.steps_of("eval") == [6, 12]
    assert [(line["step"], line["score"]) for line in run.lines("recorder")] == [(5, 2.5), (10, 5), (12, 6)]
    assert run.lines("eval") == whole[0].lines("eval")


def test_each_evaluation_that_was_missed_is_made_up_for(tmp_path):
    """Step 6 is saved and evaluated on the records, and then the other evaluator is interrupted."""
    run = Run(tmp_path / "run")

    def interrupt():
        send(signal.SIGTERM)
        raise Interrupted

    run.evaluators = [Recorder(interrupt, every=6)]
    with pytest.raises(Preempted, match="stopped at step 6, saved"):
        run.fit()
    assert run.steps_of("eval") == [6] and run.steps_of("recorder") == []
    run.evaluators = [Recorder(every=6)]
    run.fit()
    assert run.steps_of("eval") == [6, 12] and run.steps_of("recorder") == [6, 12]


def test_an_evaluator_ends_the_run_and_it_stays_ended(tmp_path):
    run = Run(tmp_path / "run")
    run.evaluators = [Recorder(every=3, until=2)]
    assert int(run.fit().step) == 6 and run.saved() == [4, 6]
    assert run.said("stopped early, at step 6 of 12") and run.steps_of("recorder") == [3, 6]
    run.evaluators = [Recorder(every=3, until=0)]
    assert int(run.fit().step) == 6 and run.said("nothing to train: the run was stopped early")


def test_two_evaluators_of_one_name_are_refused(tmp_path):
    run = Run(tmp_path / "run")
    run.evaluators = [Recorder(), Recorder()]
    with pytest.raises(ValueError, match="expected different names"):
        run.fit()


class Scores(Evaluator):
    """Scores given by step, as a fine-tuning has them."""

    every = 2

    def __init__(self, scores):
        self.name, self.scores = "scores", scores

    def evaluate(self, step, state, context):
        return {"loss": 0.0, "accuracy": self.scores[step]}


def best_of(run, scores, **options):
    run.config.eval.every = 0
    with WorkDir(run.path) as workdir:
        best = BestCheckpoint(Scores(scores), workdir, "accuracy", log=run.output.append, **options)
    run.evaluators = [best]
    return best


def test_the_best_checkpoint_is_kept_and_the_run_ends_when_nothing_gets_better(tmp_path):
    run = Run(tmp_path / "run")
    written = []
    scores = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.7, 10: 0.9, 12: 0.9}
    best_of(run, scores, patience=2, on_best=lambda: written.append("on_best") or {"degenerate": False})
    assert int(run.fit().step) == 8
    assert json.loads((run.path / "best.json").read_text()) == {
        "step": 4, "metric": "accuracy", "scores": {"accuracy": 0.7}, "degenerate": False, "since_best": 2,
        "last_step": 8,
    }  # fmt: skip
    assert [line["best_so_far"] for line in run.lines("scores")] == [1, 1, 0, 0] and len(written) == 2
    assert [path.name for path in (run.path / "best").iterdir() if path.name.isdigit()] == ["4"]
    best_of(run, scores, patience=2)
    run.fit()
    assert run.said("nothing to train: the run was stopped early") and run.steps_of("scores") == [2, 4, 6, 8]


def test_a_lower_score_may_be_the_better_one(tmp_path):
    run = Run(tmp_path / "run", steps=4)
    best = best_of(run, {2: 0.5, 4: 0.7}, lower_is_better=True)
    run.fit()
    assert best.best["step"] == 2 and best.best["since_best"] == 1


def test_evaluations_that_are_repeated_after_a_kill_count_once(tmp_path):
    """Killed after step 6, with nothing saved but the best checkpoint, the run begins anew."""
    run = Run(tmp_path / "run", checkpoint__every=0)
    scores = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.65, 10: 0.8, 12: 0.6}
    best_of(run, scores, patience=3)

    def kill():
        raise UserError("killed")

    run.before_batch = at(7, kill)
    with pytest.raises(UserError, match="killed"):
        run.fit()
    best = best_of(run, scores, patience=3)
    assert int(run.fit().step) == 12 and run.steps_of("scores") == [2, 4, 6, 8, 10, 12]
    assert best.best["step"] == 10


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

    monkeypatch.setattr(saving, "write_file_digests", fail)
    with pytest.raises(StorageError, match=r"step 12 failed .*No space left on device.*intact steps: none"):
        Run(tmp_path / "run", checkpoint__every=0).fit()  # its only save is the last thing that happens


def test_device_values_are_fetched_at_log_steps_alone(tmp_path, monkeypatch):
    fetched, fetch = [], ArrayImpl._value.fget
    run = Run(tmp_path / "run", log_every=5, eval__every=0, checkpoint__every=0)
    requested = []
    run.before_batch = requested.append

    def value(array):
        fetched.append(requested[-1])
        return fetch(array)

    monkeypatch.setattr(ArrayImpl, "_value", property(value))
    train_data = run.train_data

    def watched(step, own):
        fetched.clear()  # of the start
        return train_data(step, own)

    run.train_data = watched
    run.fit()
    # A line is written once the step after its last one is dispatched, when the batch behind it was asked
    # for: of step 1 with batch 2, of step 5 with batch 6, of steps 10 and 12 with batch 11, the last one.
    assert sorted(set(fetched)) == [2, 6, 11]
