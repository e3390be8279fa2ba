import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import packed_batch, tiny_config
from support.numpy_lstm import drawn

from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.baselines import ClassificationAndLM
from bert_jax.objectives.classification import Classification
from bert_jax.training import flops
from bert_jax.training.flops import RowFlops

CONFIG = tiny_config(
    hidden_size=16, num_attention_heads=2, intermediate_size=16, causal=True, hidden_dropout_prob=0.0
)
OBJECTIVE = ClassificationAndLM(CONFIG, 3, lm_weight=0.5)


def batches():
    """The same examples packed, and one per row."""
    packed = packed_batch(rows=3, length=24, slots=2)
    del packed["next_sentence_labels"], packed["row_ids"]
    found = np.nonzero(packed["first_lengths"])
    packed["weights"] = (packed["first_lengths"] > 0).astype(np.float32)
    packed["targets"] = np.arange(packed["weights"].size, dtype=np.int32).reshape(-1, 2) % 3
    ends = [
        min([*packed["starts"][row, slot + 1 :], packed["lengths"][row]])
        for row, slot in zip(*found, strict=True)
    ]
    starts = packed["starts"][found]
    alone = {
        "input_ids": np.zeros((len(ends), 16), np.int32),
        "lengths": np.array(ends, np.int32) - starts,
        "first_lengths": packed["first_lengths"][found],
        "weights": packed["weights"][found],
        "targets": packed["targets"][found],
    }
    for number, (row, start, end) in enumerate(zip(found[0], starts, ends, strict=True)):
        alone["input_ids"][number, : end - start] = packed["input_ids"][row, start:end]
    return packed, alone


@pytest.fixture(scope="module")
def params():
    ids = jnp.zeros((1, 8), jnp.int32)
    return drawn(OBJECTIVE.model, ids, ids, ids, ids, scale=0.2)["params"]


def total(params, batch):
    prepared = OBJECTIVE.prepare(batch, None, True)
    weights = OBJECTIVE.weights(prepared)
    pairs, _ = OBJECTIVE.loss(params, prepared, None)
    assert pairs.keys() == weights.keys() == {"task", "clm"}
    for name, pair in pairs.items():
        np.testing.assert_allclose(pair[1], weights[name])
    return sum(OBJECTIVE.scales.get(name, 1) * pair[0] / weights[name] for name, pair in pairs.items())


@pytest.mark.long
def test_the_loss_is_that_of_the_task_and_half_that_of_the_next_token(params):
    _, alone = batches()
    prepared = OBJECTIVE.prepare(alone, None, True)
    model = OBJECTIVE.model
    logits, of_next = model.apply({"params": params}, *(prepared[name] for name in INPUTS))
    of_task = -np.log(jax.nn.softmax(logits))[np.arange(len(logits)), alone["targets"]].mean()
    log_probabilities, per_token = np.asarray(jax.nn.log_softmax(of_next)), []
    for row, length in enumerate(alone["lengths"]):
        for place in range(length - 1):
            per_token.append(-log_probabilities[row, place, alone["input_ids"][row, place + 1]])
    assert total(params, alone) == pytest.approx(of_task + 0.5 * np.mean(per_token), rel=1e-5)


@pytest.mark.slow
def test_packed_rows_have_the_same_loss_and_gradient(params):
    (value, gradient), (same, other) = (jax.value_and_grad(total)(params, batch) for batch in batches())
    assert value == pytest.approx(float(same), rel=1e-5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient):
        name = jax.tree_util.keystr(path)
        assert np.any(leaf) or "pooler" in name or "'key']['bias" in name or "token_type" in name, name
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradient, other)


@pytest.mark.long
def test_predictions_and_metrics_are_those_of_the_task_alone(params):
    _, alone = batches()
    plain = Classification(CONFIG, 3)
    without = {name: tree for name, tree in params.items() if name != "mlm"}
    np.testing.assert_allclose(OBJECTIVE.predict(params, alone), plain.predict(without, alone), atol=1e-6)
    metrics, expected = (
        objective.loss(tree, objective.prepare(alone, None, True), None)[1]
        for objective, tree in ((OBJECTIVE, params), (plain, without))
    )
    np.testing.assert_allclose(metrics["accuracy"], expected["accuracy"])


def test_flops_count_the_next_token_of_every_position():
    without, found = (flops.row_flops(objective)(10) for objective in (Classification(CONFIG, 3), OBJECTIVE))
    assert found - without == 6 * 10 * (16 * 16 + 16 * CONFIG.vocab_size)
    assert RowFlops.of(OBJECTIVE)(10) == without
