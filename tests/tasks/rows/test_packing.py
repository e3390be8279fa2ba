"""Packed rows give the same loss and gradient as single rows, and every example appears once per epoch."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.encoded import rows
from support.tiny_model import draw_parameters, tiny_config

from bert_jax.objectives.classification import Classification
from bert_jax.tasks.rows import batches, packing
from bert_jax.training.flops import RowFlops

CONFIG = tiny_config(40).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
ROW_FLOPS = RowFlops.of(Classification(CONFIG, 2, "classification"))
RNG = np.random.default_rng


def check(batch, data, row, slot, example):
    """Asserts that an example is in a slot, token by token."""
    start, length = batch["starts"][row, slot], data.lengths[example]
    assert start + length <= batch["lengths"][row]
    tokens = data.tokens[data.offsets[example] :][:length]
    np.testing.assert_array_equal(batch["input_ids"][row, start : start + length], tokens)
    assert batch["first_lengths"][row, slot] == data.first_lengths[example]


def found(batch, data):
    """Returns the examples of a batch; checks each of them."""
    for row, slot in zip(*np.nonzero(batch["weights"]), strict=True):
        check(batch, data, row, slot, batch["targets"][row, slot])
    absent = batch["weights"] == 0
    assert (batch["starts"][absent] == batch["input_ids"].shape[1]).all()
    assert not batch["first_lengths"][absent].any()
    return batch["targets"][~absent]


def shape_for(data, length, rows=(1,), multiple=1):
    return packing.Packing(length, length // int(data.lengths.min()), rows, multiple, 1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["classification", "weighted", "windows", "regression", "multilabel", "causal"]
)
def test_the_loss_and_the_gradient_are_those_of_one_example_a_row(kind):
    lengths = [3, 9, 5, 16, 4, 12, 7, 6]
    rng = RNG(3)
    targets = {
        "regression": rng.normal(size=8).astype(np.float32),
        "multilabel": rng.integers(0, 2, (8, 3)).astype(np.float32),
    }.get(kind, rng.integers(0, 3, 8).astype(np.int32))
    row_weights = rng.uniform(0.3, 2, 8).astype(np.float32) if kind == "windows" else None
    data = rows(lengths, targets={"targets": targets}, row_weights=row_weights)
    task = Classification(
        CONFIG.replace(causal=kind == "causal"),  # the head of a causal model reads the last token
        3,
        kind if kind in ("regression", "multilabel") else "classification",
        class_weights=(1.0, 3.0, 0.5) if kind == "weighted" else (),
        windows=kind == "windows",
    )
    params = draw_parameters(task)
    order = np.array([3, 0, 5, 1, 7, 2, -1, 6, 4])
    apart = batches.make_batch(data, order, (16,))
    packed = packing.make_batch(data, order, shape_for(data, 18, rows=(3, 6)))
    assert packed["input_ids"].shape == (6, 18) and (packed["lengths"] > 0).sum() < 8

    def loss(params, batch):
        batch = task.prepare(batch, None, True)
        pairs, found = task.loss(params, batch, None)
        return pairs["task"][0], ((pairs, found, task.weights(batch)), batch)

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, (values, _)), grads = gradient(params, apart)
    (_, (same, prepared)), same_grads = gradient(params, packed)

    def close(a, b):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)

    jax.tree.map(close, (same, same_grads), (values, grads))
    assert prepared["sequences"].sum() == 8 and prepared["tokens"].sum() == sum(lengths)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 32), min_size=1, max_size=70),
    batch_size=st.sampled_from([1, 4, 8]),
    multiple=st.sampled_from([1, 2, 4]),
    seed=st.integers(0, 3),
)
def test_every_example_once_an_epoch_whole_in_the_shapes_that_were_planned(
    lengths, batch_size, multiple, seed
):
    data = rows(lengths)
    steps = 2 * batches.steps_per_epoch(len(data), batch_size)
    shape = packing.plan(data, batch_size, steps, multiple, ROW_FLOPS)
    if shape is None:
        return
    stream = list(itertools.islice(packing.train_batches(data, shape, batch_size, seed, 0), steps))
    assert all(rows % multiple == 0 for rows in shape.rows)
    if seed == packing._PLAN_SEED:
        assert {batch["input_ids"].shape[0] for batch in stream} <= set(shape.rows)
    for batch in stream:  # with another seed, a batch may need more rows, but has no unneeded ones
        count, needed = batch["input_ids"].shape[0], np.count_nonzero(batch["weights"].any(axis=1))
        assert count in shape.rows or (count > shape.rows[-1] and count - needed < multiple)
    for epoch in (stream[: steps // 2], stream[steps // 2 :]):
        assert sorted(np.concatenate([found(batch, data) for batch in epoch])) == list(range(len(data)))
    later = packing.train_batches(data, shape, batch_size, seed, steps - 1)
    jax.tree.map(np.testing.assert_array_equal, next(later), stream[-1])


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(2, 32), min_size=1, max_size=200), devices=st.sampled_from([1, 2]))
def test_predictions_have_every_example_once_in_batches_of_one_shape(lengths, devices):
    data = rows(lengths)
    shape = packing.for_outputs(data.lengths, 256, devices, lambda length: length, np.inf)
    assert (shape.length, shape.multiple) == (128, 2 * devices)
    made = packing.output_batches(data, shape, np.arange(shape.multiple))
    seen = []
    for examples_of_rows, make in made:
        batch = make()
        assert set(batch) == {"input_ids", "lengths", "starts", "first_lengths", "weights"}
        assert batch["input_ids"].shape == (shape.multiple, shape.length)
        assert batch["weights"].sum() == sum(map(len, examples_of_rows))
        for row, examples in enumerate(examples_of_rows):
            for slot, example in enumerate(examples):
                check(batch, data, row, slot, example)
            seen += list(examples)
    assert sorted(seen) == list(range(len(data)))
    needed = max(sum(lengths) / 0.97 / 128, len(lengths) / 32)
    total = -(-needed // shape.multiple) * shape.multiple * shape.length
    for padded, chosen in ((total, None), (total + 1, shape)):
        assert packing.for_outputs(data.lengths, 256, devices, lambda length: length, padded) == chosen


def test_processes_feed_the_rows_that_are_theirs():
    data = rows(RNG(1).integers(2, 20, 40).tolist())
    shape = packing.plan(data, 8, 20, 4, ROW_FLOPS)
    whole = packing.train_batches(data, shape, 8, 0, 3)
    halves = [
        packing.train_batches(data, shape, 8, 0, 3, lambda rows, k=k: np.arange(k, rows, 2)) for k in (0, 1)
    ]
    for batch, even, odd in itertools.islice(zip(whole, *halves, strict=True), 5):
        for name, array in batch.items():
            np.testing.assert_array_equal(even[name], array[0::2])
            np.testing.assert_array_equal(odd[name], array[1::2])


def test_the_members_of_groups_have_the_order_of_the_batch_and_their_places():
    targets, weights = np.arange(11, 19, dtype=np.int32), np.arange(1, 9, dtype=np.float32)
    fields = dict(targets={"targets": targets}, row_weights=weights, rows_per_example=2)
    data = rows([5, 7, 3, 4, 6, 2, 8, 3], **fields)
    indices = batches.expand(np.array([2, -1, 0]), 2)
    shape = shape_for(data, 10, rows=(4,))
    batch = packing.make_batch(data, indices, shape)
    assert batch["weights"].tolist() == [1, 1, 0, 0, 1, 1]
    assert batch["targets"].tolist() == [15, 16, 0, 0, 11, 12]
    assert batch["row_weights"].tolist() == [5, 6, 0, 0, 1, 2]
    assert batch["places"].dtype == np.int32 and len(set(batch["places"][[0, 1, 4, 5]].tolist())) == 4
    for member in (0, 1, 4, 5):
        row, slot = divmod(int(batch["places"][member]), shape.sequences)
        check(batch, data, row, slot, indices[member])
