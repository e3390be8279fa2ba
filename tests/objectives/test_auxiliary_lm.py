import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.models import packed_batch, tiny_config
from support.numpy_lstm import drawn

from bert_jax.models.row_inputs import INPUTS
from bert_jax.objectives.baselines import ClassificationAndLM

CONFIG = tiny_config(
    hidden_size=16, num_attention_heads=2, intermediate_size=16, causal=True, hidden_dropout_prob=0.0
)
OBJECTIVE = ClassificationAndLM(CONFIG, 3, lm_weight=0.5)


def examples():
    """One example per row."""
    batch = packed_batch(rows=4, length=16, slots=1)
    return {
        "input_ids": batch["input_ids"],
        "lengths": batch["lengths"],
        "first_lengths": batch["lengths"],
        "weights": np.ones(4, np.float32),
        "targets": np.arange(4, dtype=np.int32) % 3,
    }


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
    alone = examples()
    prepared = OBJECTIVE.prepare(alone, None, True)
    model = OBJECTIVE.model
    logits, of_next = model.apply({"params": params}, *(prepared[name] for name in INPUTS))
    of_task = -np.log(jax.nn.softmax(logits))[np.arange(len(logits)), alone["targets"]].mean()
    log_probabilities, per_token = np.asarray(jax.nn.log_softmax(of_next)), []
    for row, length in enumerate(alone["lengths"]):
        for place in range(length - 1):
            per_token.append(-log_probabilities[row, place, alone["input_ids"][row, place + 1]])
    assert total(params, alone) == pytest.approx(of_task + 0.5 * np.mean(per_token), rel=1e-5)
