"""The train loop on a linear model: one work directory, and what can happen to the run in it."""

import json
import os
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from support.states import assert_same as assert_same

from bert_jax.objectives.base import Objective
from bert_jax.parallel import sharding
from bert_jax.settings import config_fields, defaults
from bert_jax.settings.pretrain_config import PretrainConfig
from bert_jax.training import step as step_module
from bert_jax.training import train
from bert_jax.training.evaluators import EvalStep, Evaluator, RecordEvaluator
from bert_jax.training.metrics import MetricsWriter
from bert_jax.workdir.run_directory import WorkDir

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
        close = jnp.sum((jnp.abs(error) < 0.5).astype(weight.dtype) * weight)
        return {"mse": (jnp.sum(weight * error**2), weight.sum())}, {"close": (close, weight.sum())}


def make_batch(number, rows=16):
    rng = np.random.default_rng(number)
    x = rng.normal(size=(rows, 8)).astype(np.float32)
    return {"x": x, "y": x @ WEIGHTS + 1, "tokens": np.ones(rows, np.int32)}


class Run:
    """One work directory and what is trained in it."""

    def __init__(self, path, **changes):
        self.path = path
        self.config = defaults.pretrain()
        self.config.update(
            {
                "steps": 12, "batch_size": 16, "log_every": 1, "max_skipped_steps": 3, "mesh": {"fsdp": 2},
                "checkpoint": {"every": 4, "keep": 2}, "eval": {"every": 6}, "model": {"dtype": "float32"},
                "optimizer": {"name": "sgd"},  # `self.optimizer` is used in its place.
            }
        )  # fmt: skip
        for name, value in changes.items():
            self.config.update_from_flattened_dict({name.replace("__", "."): value})
        self.task, self.output, self.evaluators = Regression(), [], []
        self.before_batch = self.before_eval_batch = lambda number: None
        self.optimizer, self.initial_params = (optax.trace(0.9), lambda step: 0.01), None

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
                mesh = sharding.mesh_of(self.config.mesh)
                records = RecordEvaluator(
                    EvalStep(self.task, self.config.seed, mesh),
                    self.eval_data,
                    batch_size=self.config.batch_size,
                    every=self.config.eval.every,
                )
                config = config_fields.build(PretrainConfig, self.config)
                with mock.patch.object(step_module, "make_optimizer", return_value=self.optimizer):
                    return train.fit(
                        workdir=workdir, config=config, objective=self.task, train_data=self.train_data,
                        evaluators=[records, *self.evaluators], flops_per_step=lambda step: 0, writer=writer,
                        initial_params=self.initial_params,
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

    def logged(self, text):
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

    def should_stop(self, step):
        return len(self.steps) >= self._until


def send(number):
    """Sends a signal to this process; Python's handler runs before this returns."""
    os.kill(os.getpid(), number)


def at(step, action):
    """Does `action` the first time that it is asked about `step`."""
    todo = [action]
    return lambda number: todo and number == step and todo.pop()()


def spoil(run, steps):
    """Makes the targets of the batches of these steps NaN."""

    def train_data(step, own):
        while True:
            run.before_batch(step)
            batch = make_batch(step)
            yield batch | {"y": batch["y"] * np.nan} if step in steps else batch
            step += 1

    run.train_data = train_data
