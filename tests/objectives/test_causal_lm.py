"""Left-to-right language modeling: its labels, its loss against NumPy, and that it learns."""

import functools

import jax
import numpy as np
import optax
import pytest
from support import google_records
from support.models import packed_batch, tiny_config, tiny_task
from support.tiny_model import draw_parameters

from bert_jax.data import records
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.parallel import sharding
from bert_jax.training.state import abstract_state, init_state
from bert_jax.training.step import make_train_step


def make(**fields):
    return CausalLM(
        tiny_config(causal=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **fields)
    )


@functools.cache
def drawn():
    objective = make()
    return objective, draw_parameters(objective)


def prepare(objective, batch):
    return jax.tree.map(np.asarray, objective.prepare(batch, jax.random.key(0), True))


@jax.jit
def apply(params, *inputs):
    return make().model.apply({"params": params}, *inputs, None, None)[0]


def logits_of(params, prepared):
    return np.asarray(apply(params, *(prepared[name] for name in INPUTS)))


def test_labels_of_a_row_by_hand():
    """A [SEP] within a sequence is a token like others, the end of a sequence has no label."""
    batch = {
        "input_ids": np.array([[2, 7, 3, 8, 3, 2, 9, 3, 0, 0]], np.int32),
        "lengths": np.array([8]),
        "starts": np.array([[0, 5, 10]]),
        "first_lengths": np.array([[3, 3, 0]]),
        "next_sentence_labels": np.array([[1, -1, -1]]),
    }
    prepared = prepare(make(), batch)
    assert prepared["next_weights"].tolist() == [[1, 1, 1, 1, 0, 1, 1, 0, 0, 0]]
    assert prepared["next_labels"][0, :8].tolist() == [7, 3, 8, 3, 2, 9, 3, 0]
    assert (prepared["tokens"].tolist(), prepared["sequences"].tolist()) == ([8], [2])


def test_masked_records_get_their_tokens_back(tmp_path):
    rows = [google_records.example(first=(9, 4), second=(11, 12), masks=((2, 10), (4, 30)))]
    google_records.write(tmp_path / "records" / "a.tfrecord", rows)
    vocab = google_records.write_vocabulary(tmp_path / "vocab.txt", 101)
    batch = records.open_dataset(str(tmp_path / "records"), "train", vocab).batch(np.arange(1))
    prepared = prepare(make(), batch)
    assert prepared["input_ids"][0, :8].tolist() == [2, 9, 10, 3, 30, 12, 3, 0]
    assert prepared["next_labels"][0, :6].tolist() == [9, 10, 3, 30, 12, 3]


@pytest.mark.long
def test_loss_and_accuracy_of_packed_rows_in_numpy():
    """From the logits of each sequence in a row of its own."""
    objective, params = drawn()
    batch = packed_batch(rows=4)
    losses, metrics = jax.jit(objective.loss)(params, prepared := prepare(objective, batch), None)
    total, hits, count = 0.0, 0, 0
    for row, slot in zip(*np.nonzero(batch["first_lengths"]), strict=True):
        start = batch["starts"][row, slot]
        end = min([*batch["starts"][row, slot + 1 :], batch["lengths"][row]])
        alone = {name: np.zeros((1, 32), np.int32) for name in INPUTS}
        alone["input_ids"][0, : end - start] = tokens = batch["input_ids"][row, start:end]
        alone["token_type_ids"][0, batch["first_lengths"][row, slot] : end - start] = 1
        alone["position_ids"][0, : end - start] = np.arange(end - start)
        alone["sequence_ids"][0, : end - start] = 1
        logits = logits_of(params, alone)[0].astype(np.float64)
        for i, following in enumerate(tokens[1:]):
            total += np.log(np.exp(logits[i]).sum()) - logits[i, following]
            hits += logits[i].argmax() == following
            count += 1
    assert losses.keys() == {"clm"} and metrics.keys() == {"clm_accuracy"}
    assert float(losses["clm"][1]) == float(objective.weights(prepared)["clm"]) == count
    assert float(losses["clm"][0]) == pytest.approx(total, rel=1e-5)
    assert float(metrics["clm_accuracy"][0]) == pytest.approx(hits)


def test_no_prediction_depends_on_what_it_predicts():
    objective, params = drawn()
    prepared = prepare(objective, packed_batch(rows=3, slots=1))
    changed = prepared | {"input_ids": prepared["input_ids"].copy()}
    changed["input_ids"][:, 5] = (changed["input_ids"][:, 5] + 1) % 101
    mine, theirs = (logits_of(params, each) for each in (prepared, changed))
    np.testing.assert_array_equal(mine[:, :5], theirs[:, :5])
    assert np.abs(mine[:, 5:7] - theirs[:, 5:7]).max() > 1e-3


@functools.cache
def two_phases():
    """An objective with its initial state on the host, and a batch of its first steps."""
    objective = CausalThenMasked(tiny_task())
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    state = jax.device_get(init_state(objective, optax.identity(), mesh, 0))
    batch = packed_batch(rows=8)
    return objective, state, batch | {LEFT_TO_RIGHT: np.ones(8, np.int32)}


def step_of(objective, batch, parts=1):
    _, state, _ = two_phases()
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(objective, optax.identity(), mesh))
    step = sharding.jit_train_step(
        make_train_step(objective, optax.identity(), lambda step: 1.0, parts), mesh, shardings
    )
    after, metrics = step(jax.device_put(state, shardings), sharding.global_batch(batch, mesh), np.uint32(7))
    return jax.device_get(after.params), jax.device_get(metrics)


def assert_equal_steps(one, other):
    jax.tree.map(np.testing.assert_array_equal, one[0], other[0])
    assert one[1] == other[1]


@pytest.mark.long
def test_batches_without_the_mark_are_masked_lm_bit_for_bit():
    objective, _, marked = two_phases()
    plain = {name: x for name, x in marked.items() if name != LEFT_TO_RIGHT}
    found = step_of(objective, plain)
    assert_equal_steps(found, step_of(objective.masked, plain))
    assert "mlm_loss" in found[1] and "clm_loss" not in found[1]


@pytest.mark.long
def test_marked_batches_are_left_to_right_and_leave_the_other_head_alone():
    objective, state, marked = two_phases()
    params, metrics = step_of(objective, marked)
    assert float(metrics["loss"]) == float(metrics["clm_loss"])
    assert float(metrics["loss"]) == pytest.approx(np.log(objective.config.vocab_size), rel=0.05)
    for group in ("nsp", "pooler"):
        jax.tree.map(np.testing.assert_array_equal, params[group], state.params[group])
    causal = CausalLM(tiny_config(causal=True))
    own = {name: params[name] for name in ("encoder", "mlm")}
    start = {name: state.params[name] for name in own}
    prepared = causal.prepare(marked, None, True)

    def loss(params):
        key = jax.random.split(jax.random.fold_in(jax.random.key(7), 0))[1]
        total, weight = causal.loss(params, prepared, {"dropout": key})[0]["clm"]
        return total / weight

    value, gradient = jax.jit(jax.value_and_grad(loss))(start)
    assert float(metrics["clm_loss"]) == pytest.approx(float(value), rel=1e-5)
    close = functools.partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(lambda after, before, g: close(before - after, g), own, start, gradient)
