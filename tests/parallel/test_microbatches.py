import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import packed_batch, tiny_task

from bert_jax.kernels.dropout import dropout_rows, row_numbers
from bert_jax.parallel import host, microbatches, sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.tasks.rows import outputs
from bert_jax.training import optimizers
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step

CORES = 2


@pytest.fixture(autouse=True)
def cores(monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: CORES)


def mesh_of(*sizes):
    return sharding.make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])


def test_rows_split_by_strides_and_join_in_their_order():
    batch = {"x": np.arange(12).reshape(6, 2)}
    split = microbatches.split_rows(batch, 3)
    assert np.array_equal(split["x"][:, :, 0], [[0, 6], [2, 8], [4, 10]])
    assert np.array_equal(microbatches.join_rows(split)["x"], batch["x"])


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_parts_know_their_rows(count):
    batch = {"input_ids": jnp.arange(12).reshape(6, 2)}

    def numbered(rows):
        return {"ids": rows["input_ids"], "number": row_numbers(len(rows["input_ids"]))}

    found = microbatches.mapped(numbered, batch, count)
    assert np.array_equal(found["ids"], batch["input_ids"]) and np.array_equal(found["number"], np.arange(6))
    total = microbatches.summed(lambda rows: jax.tree.map(jnp.sum, numbered(rows)), batch, count)
    assert total == {"ids": 66, "number": 15} and total["ids"].dtype == jnp.int32
    # A device with some rows of the batch, which also has an array with four examples per row.
    with dropout_rows(mine := np.array([9, 1, 4, 6, 7, 2])):
        found = microbatches.mapped(numbered, batch | {"examples": jnp.zeros(24)}, count)
    assert np.array_equal(found["ids"], batch["input_ids"]) and np.array_equal(found["number"], mine)


MESHES = [(1, 1, 1), (8, 1, 1), (2, 2, 2), (1, 8, 1)]


@functools.cache
def begin():
    """Returns a task, its optimizer, and parameters on the host."""
    task = tiny_task()
    tx, _ = optimizers.make_optimizer(OptimizerConfig(warmup_steps=0), 10, task)
    return task, tx, jax.device_get(init_state(task, tx, mesh_of(1, 1, 1), 3).params)


def evaluation(sizes, count):
    mesh, (task, tx, params) = mesh_of(*sizes), begin()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state(task, tx, mesh))
    step = sharding.jit_eval_step(make_eval_step(task, lambda batch: count), mesh, shardings)
    batch = sharding.global_batch(packed_batch(rows=48), mesh)
    return step, (jax.device_put(params, shardings.params), batch, np.int32(0), np.uint32(3))


@functools.cache
def sums_of_the_whole_batch():
    whole, arguments = evaluation((1, 1, 1), 1)
    return jax.device_get(whole(*arguments))


@pytest.mark.long
@pytest.mark.parametrize("sizes", MESHES)
def test_sums_and_weights_of_an_evaluation_in_parts_are_those_of_the_whole_batch(sizes):
    expected = sums_of_the_whole_batch()
    for count in (2, 3):
        step, arguments = evaluation(sizes, count)
        for name, (total, weight) in jax.device_get(step(*arguments)).items():
            assert weight == expected[name][1], name
            assert total == pytest.approx(float(expected[name][0]), rel=1e-6), name


def gathered(text):
    """Returns the size of the largest array that a program gathers from several devices."""
    moves = r"= (.*) (all-gather|all-to-all|collective-permute)(-start)?\("
    results = [found[1] for line in text.splitlines() if (found := re.search(moves, line))]
    shapes = [shape for result in results for shape in re.findall(r"\w\d+\[([\d,]*)\]", result)]
    return max((int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes), default=0)


class Plain:
    """An objective whose outputs show which rows are computed together."""

    def join(self, params, frozen):
        return params

    def predict(self, params, batch):
        ids = batch["input_ids"].astype(jnp.float32)
        return jnp.stack([params * jnp.sum(ids, axis=-1), jnp.full(len(ids), float(len(ids)))], axis=1)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 1, 1), (4, 2, 1)])
def test_predictions_in_parts_are_in_the_order_of_the_rows(sizes):
    mesh, rows = mesh_of(*sizes), 256
    ids = np.random.default_rng(0).integers(0, 9, (rows, 128), np.int32)
    predict = outputs.make_predict(Plain(), mesh)
    found = np.asarray(predict(np.float32(2), sharding.global_batch({"input_ids": ids}, mesh)))
    assert np.array_equal(found[:, 0], 2 * ids.sum(axis=1))
    # 1,024 tokens on each device at a time.
    assert np.array_equal(np.unique(found[:, 1]), [8 * mesh.size])
    text = predict.lower(np.float32(2), sharding.global_batch({"input_ids": ids}, mesh)).compile().as_text()
    assert gathered(text) <= 2 * rows  # the outputs, and no rows


class Output:
    """Stands for a device array that is freed once it is copied to the host."""

    held = most = 0

    def __init__(self, value):
        self.value = value
        Output.held += 1
        Output.most = max(Output.most, Output.held)

    def __array__(self, dtype=None, copy=None):
        Output.held -= 1
        return np.asarray(self.value, dtype)


def test_outputs_come_in_order_and_two_at_most_are_held():
    found = list(microbatches.pipelined(Output, ((str(i), i) for i in range(7))))
    assert [(key, int(value)) for key, value in found] == [(str(i), i) for i in range(7)]
    assert Output.most == 2 and Output.held == 0
    assert list(microbatches.pipelined(Output, [])) == []
