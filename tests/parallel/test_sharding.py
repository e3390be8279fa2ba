"""The same step on one device and on eight, with every split of the mesh."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support import states
from support.models import packed_batch, tiny_task

from bert_jax.kernels.dropout import row_numbers
from bert_jax.parallel import sharding
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_eval_step, make_train_step

SPLITS = [
    *((8, 1, 1), (2, 2, 2)),
    *(
        pytest.param(split, marks=pytest.mark.slow)
        for split in ((1, 8, 1), (1, 1, 8), (4, 1, 2), (1, 4, 2), (4, 2, 1))
    ),
]
VOCAB = 104  # a multiple of 8, so that the vocabulary is split too


@functools.cache
def begin(mesh_sizes, shard=False, **optimizer):
    """The task, its optimizer and schedule, the mesh, and a state on the host with its shardings."""
    devices = jax.devices()[: int(np.prod(mesh_sizes))]
    mesh = sharding.make_mesh(*mesh_sizes, devices=devices)
    task = tiny_task(vocab_size=VOCAB, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config = OptimizerConfig(learning_rate=1e-2, warmup_steps=0, **optimizer)
    tx, schedule = optimizers.make_optimizer(config, 1000, task)
    state = init_state(task, tx, mesh, 3, abstract_state(task, tx, mesh, shard))
    return task, tx, schedule, mesh, jax.device_get(state), jax.tree.map(lambda leaf: leaf.sharding, state)


def moments_of(task, mesh):
    return sharding.parameter_shardings(task.init_shapes, mesh, over_data=True)


@functools.cache
def run(mesh_sizes, accumulate_steps=1, steps=4, shard=False, **optimizer):
    """Some steps and, of a whole batch, an evaluation: metrics of each step, the state, the evaluation's
    means."""
    task, tx, schedule, mesh, state, shardings = begin(mesh_sizes, shard, **optimizer)
    state = jax.device_put(state, shardings)
    moments = moments_of(task, mesh) if shard else None
    train_step = make_train_step(task, tx, schedule, accumulate_steps, moments=moments)
    step = sharding.jit_train_step(train_step, mesh, shardings)
    lines = []
    for number in range(steps):
        batch = sharding.global_batch(packed_batch(rows=16, seed=number, vocab=VOCAB), mesh)
        state, metrics = step(state, batch, np.uint32(3))
        lines.append({name: float(value) for name, value in metrics.items()})
    if accumulate_steps > 1:
        return lines, state, {}
    evaluate = sharding.jit_eval_step(make_eval_step(task), mesh, shardings)
    batch = sharding.global_batch(packed_batch(rows=16, seed=99, vocab=VOCAB), mesh)
    pairs = evaluate(state.params, batch, np.int32(0), np.uint32(3))
    return lines, state, {name: float(total) / float(weight) for name, (total, weight) in pairs.items()}


@pytest.mark.long
@pytest.mark.parametrize("mesh_sizes", SPLITS)
def test_losses_are_those_of_one_device(mesh_sizes):
    lines, _, evaluation = run(mesh_sizes)
    expected, _, expected_evaluation = run((1, 1, 1))
    for mine, reference in zip(lines, expected, strict=True):
        assert mine["tokens"] == reference["tokens"] and mine["sequences"] == reference["sequences"]
        for name in ("loss", "mlm_loss", "nsp_loss"):
            assert abs(mine[name] - reference[name]) < 1e-6 * reference[name] + 1e-6, (name, mine, reference)
        assert abs(mine["grad_norm"] / reference["grad_norm"] - 1) < 1e-4
    for name, value in expected_evaluation.items():
        assert abs(evaluation[name] - value) < 1e-5, name


@pytest.mark.long
@pytest.mark.parametrize("mesh_sizes, shard", [((2, 2, 2), False), ((8, 1, 1), True)])
def test_muon_is_that_of_one_device(mesh_sizes, shard):
    split, whole = run(mesh_sizes, shard=shard, name="muon"), run((1, 1, 1), name="muon")
    states.assert_close_runs((split[0], split[1].params), (whole[0], whole[1].params))


@pytest.mark.long
@pytest.mark.parametrize(
    "mesh_sizes, accumulate_steps, optimizer",
    [((8, 1, 1), 2, "lamb"), ((2, 2, 2), 1, "adamw"), ((8, 1, 1), 1, "adamw"), ((4, 1, 2), 2, "lamb")],
)
def test_a_sharded_optimizer_takes_the_steps_of_a_whole_one(mesh_sizes, accumulate_steps, optimizer):
    # A smaller `eps` would turn the rounding errors of gradients that are 0 into steps.
    options = {"name": optimizer, "eps": 1e-2}
    whole, state, _ = run(mesh_sizes, accumulate_steps, 50, **options)
    lines, sharded, _ = run(mesh_sizes, accumulate_steps, 50, True, **options)
    for mine, reference in zip(lines, whole, strict=True):
        assert mine["loss"] == pytest.approx(reference["loss"], rel=1e-6)
    for mine, reference in zip(*map(jax.tree.leaves, (sharded.params, state.params)), strict=True):
        assert mine.sharding.is_equivalent_to(reference.sharding, mine.ndim)
        np.testing.assert_allclose(np.asarray(mine), np.asarray(reference), atol=1e-5)
    held = [
        sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(each.opt_state[1]))
        for each in (sharded, state)
    ]
    assert held[0] < held[1] * (1 / mesh_sizes[0] + 0.01)


@pytest.mark.parametrize("dtype, name", [("float32", "f32"), ("bfloat16", "bf16")])
def test_devices_add_up_gradients_once_in_the_given_dtype(dtype, name):
    task, tx, schedule, mesh, state, shardings = begin((8, 1, 1))
    step = make_train_step(task, tx, schedule, 2, reduce_dtype=dtype)
    batch = sharding.global_batch(packed_batch(rows=16, vocab=VOCAB), mesh)
    program = sharding.jit_train_step(step, mesh, shardings).lower(state, batch, np.uint32(3))
    found = re.findall(
        rf"stablehlo.all_reduce\".*?}}\) : \(tensor<([\dx]+)x{name}>\)", program.as_text(), re.DOTALL
    )
    sizes = sum(np.prod([int(size) for size in shape.split("x")]) for shape in found)
    assert sizes == sum(leaf.size for leaf in jax.tree.leaves(state.params))


@pytest.mark.long
@pytest.mark.parametrize("mesh_sizes", SPLITS)
def test_parameters_and_moments_are_really_sharded(mesh_sizes):
    _, fsdp, tensor = mesh_sizes
    _, state, _ = run(mesh_sizes)
    adam = state.opt_state[1]
    for tree in (state.params, adam.mu, adam.nu):
        leaf = tree["encoder"]["layers"]["stack"]["layer"]["intermediate"]["kernel"]
        assert leaf.sharding.spec == P(None, "fsdp", "tensor")
        assert leaf.addressable_shards[0].data.shape == (2, 32 // fsdp, 64 // tensor)
        words = tree["encoder"]["embeddings"]["word_embeddings"]
        assert words.addressable_shards[0].data.shape == (VOCAB // tensor, words.shape[1] // fsdp)
        query = tree["encoder"]["layers"]["stack"]["layer"]["query"]["kernel"]
        assert query.addressable_shards[0].data.shape == (2, 32 // fsdp, 8 // tensor, 4)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, adam)))
    local = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves((state.params, adam)))
    assert local < total * (1 / (fsdp * tensor) + 0.12)  # LayerNorms stay whole, and some biases


@pytest.mark.long
@pytest.mark.parametrize(
    "mesh_sizes,accumulate_steps",
    [
        *(((1, 1, 1), 4), ((8, 1, 1), 2), ((2, 2, 2), 2)),
        *(
            pytest.param(split, 2, marks=pytest.mark.slow)
            for split in ((1, 1, 1), (1, 8, 1), (1, 1, 8), (4, 1, 2), (1, 4, 2))
        ),
    ],
)
def test_accumulation_is_the_whole_batch_with_its_dropout(mesh_sizes, accumulate_steps):
    whole, state, _ = run((1, 1, 1))
    parts, state_of_parts, _ = run(mesh_sizes, accumulate_steps)
    states.assert_close_runs((parts, state_of_parts.params), (whole, state.params))


def test_each_device_adds_up_its_own_rows_by_their_numbers_in_the_batch():
    numbers = jnp.arange(16, dtype=jnp.uint32)

    def total(given, rows):
        # A device has no mesh to map logical axes to.
        rows = nn.with_logical_constraint(rows, ("batch",))
        return given * jnp.sum(rows * (row_numbers(len(rows)) == rows), dtype=jnp.uint32)

    for sizes in ((8, 1, 1), (2, 2, 2)):
        with sharding.on_mesh(mesh := sharding.make_mesh(*sizes)):
            rows = jax.device_put(numbers, sharding.batch_sharding(mesh))
            sums = jax.jit(functools.partial(sharding.sum_over_rows, total))
            assert sums(np.uint32(3), rows) == 3 * 120, sizes


def test_rules():
    mesh = sharding.make_mesh(2, 2, 2)
    spec = sharding.partition_spec
    assert spec(("embed", "mlp"), (8, 16), mesh) == P("fsdp", "tensor")
    assert spec(("vocab", "embed"), (30522, 8), mesh) == P("tensor", "fsdp")
    assert spec(("vocab", "embed"), (30521, 8), mesh) == P(
        None, "fsdp"
    )  # not divisible: the next rule, or whole
    assert spec(("vocab", "embed"), (30522, 9), mesh) == P("tensor", None)
    assert spec(("layers", "norm"), (2, 8), mesh) == P(None, None)
    assert spec(("batch", "length"), (8, 4), mesh) == P(("data", "fsdp"), None)
    assert spec(("embed", "heads", "kv"), (8, 4, 2), mesh) == P("fsdp", "tensor", None)
    assert spec(("embed", "embed_out"), (8, 6), mesh) == P("fsdp", "tensor")
    # An axis of the mesh splits one dimension.
    assert spec(("embed", "embed"), (8, 8), mesh) == P("fsdp", None)
    assert spec(("position", "embed"), (8, 8), mesh) == P(None, "fsdp")
    # What `tensor` or the other dimension does not divide.
    mesh = sharding.make_mesh(1, 2, 4)
    assert spec(("vocab",), (30522,), mesh) == P("fsdp")
    assert spec(("position", "embed"), (8, 9), mesh) == P("fsdp", None)


def test_data_splits_the_first_dimension_that_it_divides():
    def split(sizes, shape, *axes):
        return sharding.split_over_data(P(*axes), shape, sharding.make_mesh(*sizes))

    assert split((8, 1, 1), (8, 16, 3), None, "fsdp", None) == P(None, "data", None)  # no layers
    assert split((8, 1, 1), (8, 4, 3), None, None, None) == P("data", None, None)
    assert split((8, 1, 1), (30522, 16), "tensor", "fsdp") == P(None, "data")
    assert split((8, 1, 1), (30522,), "tensor") == P(None)
    assert split((2, 2, 2), (8, 16, 4), None, "fsdp", "tensor") == P("data", "fsdp", "tensor")
    assert split((2, 2, 2), (3, 4, 2), None, "fsdp", "tensor") == P(None, ("fsdp", "data"), "tensor")


class Chip:
    """A core of a slice of 2 x 2 chips."""

    platform, device_kind, core_on_chip = "tpu", "TPU v4", 0

    def __init__(self, number):
        self.id, self.slice_index = number, number // 4
        self.process_index, self.coords = self.slice_index, (number % 2, number // 2 % 2, 0)

    def __repr__(self):
        return f"{self.slice_index}:{self.id}"


@pytest.mark.parametrize(
    "sizes, axis",
    [((-1, 1, 1), 0), ((2, 2, 2), 0), ((4, 1, 2), 0), ((1, 4, 2), 1), ((1, 8, 1), 1), ((2, 4, 1), 0)],
)
def test_one_axis_extends_over_the_slices(sizes, axis):
    mesh = sharding.make_mesh(*sizes, devices=[Chip(number) for number in range(8)])
    shape = tuple(8 if size == -1 else size for size in sizes)
    assert mesh.axis_names == ("data", "fsdp", "tensor") and mesh.devices.shape == shape
    assert {device.id for device in mesh.devices.flat} == set(range(8))
    slices = np.vectorize(lambda device: device.slice_index)(mesh.devices)
    for other in {0, 1, 2} - {axis}:
        assert np.all(np.diff(slices, axis=other) == 0), slices
    assert np.all(np.sort(slices, axis) == slices) and slices.sum() == 4


def test_a_process_has_its_rows_in_their_order():
    devices = np.array(jax.devices())[[5, 2, 7, 0, 3, 6, 1, 4]]
    mesh = sharding.make_mesh(4, 2, 1, devices=list(devices))
    assert np.array_equal(sharding.local_rows(mesh, 1600), np.arange(1600))
    some = jax.sharding.Mesh(devices[:4].reshape(2, 1, 2), sharding.AXES)
    assert np.array_equal(sharding.local_rows(some, 6), np.arange(6))
