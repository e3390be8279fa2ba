import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import google_records
from support.google_records import example
from support.models import packed_batch, tiny_task

from bert_jax.data import loader, records
from bert_jax.models.row_inputs import packed_inputs
from bert_jax.objectives import losses
from bert_jax.objectives.masking import MaskingOptions
from bert_jax.objectives.replaced_tokens import ReplacedTokens
from bert_jax.parallel import sharding
from bert_jax.training.state import TrainState
from bert_jax.training.step import make_train_step


def test_unpacking_against_a_loop():
    batch = packed_batch(rows=32, length=48, slots=4)
    out = jax.tree.map(np.asarray, packed_inputs(batch))
    for row in range(32):
        count = int((batch["first_lengths"][row] > 0).sum())
        ends = [*batch["starts"][row, 1:count], batch["lengths"][row]]
        for slot, (start, end) in enumerate(zip(batch["starts"][row, :count], ends, strict=True)):
            first = batch["first_lengths"][row, slot]
            assert (out["sequence_ids"][row, start:end] == slot + 1).all()
            assert (out["position_ids"][row, start:end] == np.arange(end - start)).all()
            assert (out["token_type_ids"][row, start:end] == (np.arange(end - start) >= first)).all()
            assert batch["input_ids"][row, out["cls_positions"][row, slot]] == 2
        assert (
            not out["sequence_ids"][row, ends[-1] :].any()
            and not out["token_type_ids"][row, ends[-1] :].any()
        )


def prepare(task, batch):
    return jax.jit(task.prepare, static_argnums=2)(batch, jax.random.key(0), True)


def test_absent_sequences_do_not_weigh():
    task = tiny_task()
    batch = packed_batch(rows=8)
    prepared = prepare(task, batch)
    weights = task.weights(prepared)
    assert weights["nsp"] == (batch["next_sentence_labels"] >= 0).sum()
    expected = sum(min(8, max(1, round(0.15 * int(n)))) for n in batch["lengths"])
    assert weights["mlm"] == expected


def test_masks_depend_on_the_number_of_the_row_and_not_on_its_place():
    """Each process prepares its own rows of a global batch."""
    task, batch = tiny_task(), packed_batch(rows=8)
    whole = prepare(task, batch)
    some = prepare(task, {name: x[5:7] for name, x in batch.items()})
    for name in MASKS:
        np.testing.assert_array_equal(some[name], whole[name][5:7])


@pytest.fixture
def masked_rows(tmp_path):
    """A batch of four google records, one of them without a next-sentence label to speak of."""
    rows = [
        example(first=(9, 4), second=(11, 12), masks=((2, 10), (4, 11)), label=1),
        example(first=(20,), second=(4, 22, 23), masks=((3, 21),), label=0),
        example(first=(30, 31, 32), second=(33,), masks=((1, 40), (2, 41), (5, 42)), label=1),
        example(first=(50,), second=(51,), masks=(), label=0),
    ]
    google_records.write(tmp_path / "records" / "a.tfrecord", rows)
    vocab = google_records.write_vocabulary(tmp_path / "vocab.txt", 101)
    return records.open_dataset(str(tmp_path / "records"), "train", vocab).batch(np.arange(4))


@pytest.mark.long
def test_a_step_on_masked_records_has_the_loss_of_their_masks(masked_rows):
    task = tiny_task(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    params = sharding.unbox(jax.jit(task.init)(jax.random.key(0)))
    optimizer = optax.identity()
    step = make_train_step(task, optimizer, lambda step: 0.1)
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
    _, metrics = jax.jit(step)(state, masked_rows, np.uint32(3))

    def row(values):
        return values + [0] * (google_records.LENGTH - len(values))

    lengths = np.array([7, 7, 7, 5])
    logits = jax.jit(functools.partial(task.model.apply, deterministic=True))(
        {"params": params},
        np.array([
            row([2, 9, 4, 3, 11, 12, 3]), row([2, 20, 3, 4, 22, 23, 3]), row([2, 30, 31, 32, 3, 33, 3]),
            row([2, 50, 3, 51, 3]),
        ]),
        np.array([row([0] * a + [1] * b) for a, b in ((4, 3), (3, 4), (5, 2), (3, 2))]),
        np.array([row(list(range(length))) for length in lengths]),
        np.array([row([1] * length) for length in lengths]),
        np.array([[2, 4, 0], [3, 0, 0], [1, 2, 5], [0, 0, 0]]),
        np.zeros((4, 1), np.int32),
    )  # fmt: skip
    weights = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]], np.float32)
    labels = np.array([[10, 11, 0], [21, 0, 0], [40, 41, 42], [0, 0, 0]])
    mlm = losses.mean(losses.cross_entropy(logits[0], labels, weights))
    nsp = losses.mean(
        losses.cross_entropy(logits[1], np.array([[1], [0], [1], [0]]), np.ones((4, 1), np.float32))
    )
    np.testing.assert_allclose(metrics["mlm_loss"], mlm, rtol=1e-5)
    np.testing.assert_allclose(metrics["nsp_loss"], nsp, rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], mlm + nsp, rtol=1e-5)


def test_masks_of_records_do_not_depend_on_the_step(masked_rows):
    prepared = [tiny_task().prepare(masked_rows, jax.random.key(seed), True) for seed in range(2)]
    jax.tree.map(np.testing.assert_array_equal, *prepared)
    np.testing.assert_array_equal(prepared[0]["input_ids"], masked_rows["input_ids"])


# Masks that a row has again in a later epoch, as in BERT's static records, and those that are always new.

ROWS, SEED = 8, 5
MASKS = ("input_ids", "masked_positions", "masked_labels", "masked_weights")


def task_of(copies, strategy="token", **options):
    plain = tiny_task(strategy)
    masking = MaskingOptions(strategy=strategy, max_predictions=8, copies=copies, **options)
    return dataclasses.replace(plain, masking=masking)


def batch_of(order, copies, epoch):
    """The rows of one data set in an order, with the keys that they have in an epoch."""
    batch = {name: x[order] for name, x in packed_batch(rows=ROWS).items()} | {
        "row_ids": np.arange(len(order))
    }
    if copies:
        batch["mask_keys"] = loader.mask_keys(order, np.full(len(order), epoch % copies), SEED)
    return batch


def masks(objective, order, epoch, step, train=True):
    """The masks of each row of the data set, by its number."""
    batch = batch_of(order, objective.masking.copies, epoch)
    key = jax.random.fold_in(jax.random.key(SEED), step)
    prepared = jax.jit(objective.prepare, static_argnums=2)(batch, key, train)
    found = {name: np.asarray(prepared[name]) for name in MASKS}
    return [{name: x[place] for name, x in found.items()} for place in np.argsort(order)]


def same(first, second):
    return [all((a[name] == b[name]).all() for name in MASKS) for a, b in zip(first, second, strict=True)]


FORWARD, BACKWARD = np.arange(ROWS), np.arange(ROWS)[::-1]


@pytest.mark.parametrize(
    "strategy, options",
    [("token", {}), ("span", {}), ("whole_word", {"count": "fairseq"}), ("ngram", {"count": "bernoulli"})],
)
def test_static_masks_are_those_of_the_row_in_any_step_and_place(strategy, options):
    static = task_of(1, strategy, **options)
    first = masks(static, FORWARD, epoch=0, step=0)
    assert all(same(first, masks(static, BACKWARD, epoch=3, step=77)))
    assert all(row["masked_weights"].sum() for row in first) or options


def test_masks_are_new_in_each_step_by_default():
    dynamic = task_of(0)
    first = masks(dynamic, FORWARD, epoch=0, step=0)
    assert not any(same(first, masks(dynamic, FORWARD, epoch=0, step=1)))
    assert all(same(first, masks(tiny_task(), FORWARD, epoch=0, step=0)))


def test_the_samples_of_a_generator_are_new_where_its_masks_are_not():
    generator = dataclasses.replace(task_of(1), next_sentence_head=False)
    objective = ReplacedTokens(generator.config, generator)
    batch = batch_of(FORWARD, 1, 0)
    first, second = (objective.prepare(batch, jax.random.key(step), True) for step in range(2))
    assert all((first[name] == second[name]).all() for name in MASKS)
    assert not (first["sample_keys"] == second["sample_keys"]).all(axis=1).any()
