"""Causal language modeling: its labels, its loss compared with NumPy, and a run that learns."""

import functools

import jax
import numpy as np
import pytest
from support import google_records
from support.models import packed_batch, tiny_config, tiny_task
from support.tiny_model import draw_parameters

from bert_jax.data import records
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.objectives.classification import Classification, ClassificationAndLM


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
    """A [SEP] within a sequence is an ordinary token, and the end of a sequence has no label."""
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
    """The loss of packed rows equals NumPy's, from the logits of each sequence in a separate row."""
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


@pytest.mark.long
@pytest.mark.parametrize("marked", [True, False])
def test_marked_batches_are_left_to_right_and_others_are_masked_lm(marked):
    """The next-sentence head has no gradient in causal steps."""
    objective, batch = CausalThenMasked(tiny_task()), packed_batch(rows=8)
    params = draw_parameters(objective)
    other = CausalLM(tiny_config(causal=True)) if marked else objective.masked
    batch |= {LEFT_TO_RIGHT: np.ones(8, np.int32)} if marked else {}

    def loss(params, one):
        prepared = one.prepare(batch, jax.random.key(1), True)
        pairs, _ = one.loss(params, prepared, {"dropout": jax.random.key(2)})
        return sum(total / weight for total, weight in pairs.values())

    found, expected = (jax.jit(jax.grad(loss), static_argnums=1)(params, one) for one in (objective, other))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for group in ("nsp", "pooler"):
        assert any(np.any(x) for x in jax.tree.leaves(found[group])) != marked


@pytest.mark.long
def test_an_auxiliary_loss_is_that_of_the_next_token():
    objective = ClassificationAndLM(make().config, 3, lm_weight=0.5)
    batch = packed_batch(rows=4, length=16, slots=1)
    batch |= {"weights": np.ones(4, np.float32), "targets": np.arange(4, dtype=np.int32) % 3}
    prepared = objective.prepare(batch | {"first_lengths": batch["lengths"]}, None, True)
    params = draw_parameters(objective)
    pairs, _ = objective.loss(params, prepared, None)
    task, _ = Classification(objective.config, 3).loss(params, prepared, None)
    expected = task | CausalLM(objective.config).loss(params, prepared, None)[0]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), pairs, expected)
    assert objective.scales == {"clm": 0.5}
    assert {name: weight for name, (_, weight) in pairs.items()} == objective.weights(prepared)
