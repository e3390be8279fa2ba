"""The evaluation of a task during training, and the watchdog beside it."""

import threading
import time
import types

import numpy as np
import pytest
from support.evaluations import quiet_context

from bert_jax.parallel import sharding
from bert_jax.tasks import evaluation
from bert_jax.tasks.rows.batches import EncodedRows
from bert_jax.tasks.rows.outputs import Shapes
from bert_jax.training.watchdog import Watchdog

LIMIT = 0.2


class Task:
    """Stands for a task whose outputs are decoded slowly."""

    def decode(self, examples, rows, found):
        time.sleep(2 * LIMIT)
        return types.SimpleNamespace(confusions=lambda: None)

    def score(self, predictions):
        return {"accuracy": 1.0}

    def loss(self, rows, found):
        return None


def rows(count=24, length=4):
    return EncodedRows(
        tokens=np.ones(count * length, np.int32),
        offsets=np.arange(0, count * length + 1, length),
        first_lengths=np.full(count, length, np.int32),
        targets={},
        pad_id=0,
        max_seq_length=length,
        examples=np.arange(count),
    )


@pytest.fixture
def evaluate(monkeypatch):
    """A function (predict) that evaluates three batches of one shape; returns the watchdog's messages."""

    def evaluate(predict):
        ended = []
        monkeypatch.setattr(evaluation.outputs, "make_predict", lambda objective, mesh: predict)
        evaluator = evaluation.TaskEvaluator(
            Task(), None, rows(), None, Shapes(8), sharding.make_mesh(), types.SimpleNamespace(primary=True)
        )
        state = types.SimpleNamespace(params=None, frozen=None)
        with Watchdog(LIMIT, ended.append) as watchdog:
            assert evaluator.evaluate(1, state, quiet_context(watchdog)) == {"accuracy": 1.0}
        return ended

    return evaluate


def test_compilation_and_scores_may_take_longer_than_the_limit(evaluate):
    batches = []

    def predict(params, batch):
        if not batches:
            time.sleep(2 * LIMIT)  # the compilation
        batches.append(batch["input_ids"].shape)
        return np.ones((8, 2), np.float32)

    assert evaluate(predict) == [] and batches == 3 * [(8, 4)]


@pytest.mark.long
@pytest.mark.parametrize("where", ["dispatch", "outputs"])
def test_a_batch_that_blocks_ends_the_process(evaluate, where):
    batches, wake = [], threading.Event()

    class Blocked:
        """Stands for an array on the devices that a collective never completes."""

        def __array__(self, dtype=None, copy=None):
            wake.wait(4 * LIMIT)
            return np.ones((8, 2), np.float32)

    def predict(params, batch):
        batches.append(batch)
        if where == "outputs":
            return Blocked()
        if len(batches) == 2:
            wake.wait(4 * LIMIT)
        return np.ones((8, 2), np.float32)

    (message,) = evaluate(predict)
    assert message.startswith("no step for") and "--stall_timeout=0.2" in message
