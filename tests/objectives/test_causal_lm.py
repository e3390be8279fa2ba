"""Left-to-right language modeling: its labels, its loss against NumPy, and that it learns."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest
from support import google_records
from support.learning import learn
from support.models import packed_batch, tiny_config, tiny_task
from support.tiny_model import draw_parameters

from bert_jax.data import records
from bert_jax.models.heads.structures import MaskedLMHead
from bert_jax.models.parameters import parameter_shapes
from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives import causal_lm
from bert_jax.objectives.causal_lm import LEFT_TO_RIGHT, CausalLM, CausalThenMasked
from bert_jax.parallel import sharding
from bert_jax.runs import benchmark
from bert_jax.training import flops
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


def test_a_sequence_that_fills_the_row_has_no_label_at_its_end():
    labels, weights = causal_lm.next_tokens(np.array([[5, 6, 7]]), np.array([[1, 1, 1]]))
    assert (labels.tolist(), weights.tolist()) == ([[6, 7, 0]], [[1, 1, 0]])


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


def test_the_parameters_are_those_of_masked_lm():
    masked = tiny_task()
    wanted = {
        name: shape
        for name, shape in parameter_shapes(masked.init_shapes).items()
        if name.split("/")[0] in ("encoder", "mlm")
    }
    assert parameter_shapes(make().init_shapes) == wanted


def test_bidirectional_attention_is_an_error():
    with pytest.raises(ValueError, match="causal"):
        CausalLM(tiny_config())


@pytest.mark.long
def test_it_learns_a_text_by_heart():
    """Two copies of one text a row, so that each token follows from those before it."""
    objective = make()
    text = np.array([2, *np.random.default_rng(0).integers(5, 101, 12), 3], np.int32)
    batch = packed_batch(rows=4, slots=2)
    batch["input_ids"][:] = np.pad(np.tile(text, 2), (0, 32 - 2 * len(text)))
    batch["lengths"][:], batch["starts"][:], batch["first_lengths"][:] = 28, [0, 14], 14
    seen = learn(objective, batch, 120)
    assert float(seen[0]["loss"]) == pytest.approx(objective.initial_loss, rel=0.05)
    assert float(seen[-1]["clm_loss"]) == float(seen[-1]["loss"]) < 0.05
    assert float(seen[-1]["clm_accuracy"]) == 1


def test_the_head_is_counted_at_every_position():
    config = tiny_config(causal=True)
    masked = flops.row_flops(benchmark.make_task(config, 32, next_sentence=False))
    row = flops.row_flops(CausalLM(config))
    assert row(32, 5, 2) == row(32, 0, 0) == masked(32, 32, 0) > masked(32, 5, 0)


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
    assert float(metrics["loss"]) == pytest.approx(objective.initial_loss, rel=0.05)
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


@pytest.mark.long
def test_a_marked_batch_in_parts_is_the_whole_one():
    objective, _, marked = two_phases()
    whole, parts = (step_of(objective, marked, number) for number in (1, 2))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), whole[0], parts[0])
    assert parts[1]["clm_loss"] == pytest.approx(whole[1]["clm_loss"], rel=1e-5)


def test_both_phases_have_one_head_and_the_same_token_types():
    masked = dataclasses.replace(tiny_task(), token_types=(0, 0), head=MaskedLMHead(activation="relu"))
    causal = CausalThenMasked(masked).causal
    assert causal.config == masked.config.replace(causal=True)
    assert (causal.token_types, causal.head) == (masked.token_types, masked.head)
    marked = packed_batch(rows=2) | {LEFT_TO_RIGHT: np.ones(2)}
    prepared = CausalThenMasked(masked).prepare(marked, jax.random.key(0), True)
    assert not np.asarray(prepared["token_type_ids"]).any()


@pytest.mark.long
def test_each_phase_counts_its_own_predictions():
    objective, *_ = two_phases()
    masked = flops.row_flops(objective.masked)
    assert flops.row_flops(objective)(32, 8, 2) == masked(32, 8, 2)
    assert flops.row_flops(objective, left_to_right=True)(32, 8, 2) == masked(32, 32, 0)
