import jax
import numpy as np
import pytest
from support import numpy_lstm
from support.models import packed_batch, tiny_config
from support.numpy_lstm import drawn

from bert_jax.models.baselines.bilstm_classifier import BilstmClassifier
from bert_jax.models.row_inputs import INPUTS, packed_inputs

CONFIG = tiny_config(hidden_size=8, num_attention_heads=2, intermediate_size=16)
SKIPPED = (2, 3)  # [CLS] and [SEP] of `packed_batch`
SIZE = 6


def make(pairs, attends=False, skipped=SKIPPED):
    model = BilstmClassifier(CONFIG, 4, SIZE, pairs, attends, skipped)
    ids = np.zeros((1, 8), np.int32)
    return model, drawn(model, *[ids] * 4, scale=0.4)


def texts_of(batch):
    """The tokens of A and of B of each sequence, with its row and its place in the row."""
    for row, slot in zip(*np.nonzero(batch["first_lengths"]), strict=True):
        start, first = batch["starts"][row, slot], batch["first_lengths"][row, slot]
        end = min([*batch["starts"][row, slot + 1 :], batch["lengths"][row]])
        sides = batch["input_ids"][row, start : start + first], batch["input_ids"][row, start + first : end]
        yield row, slot, [side[~np.isin(side, SKIPPED)] for side in sides]


def normalized(x, params, epsilon=CONFIG.layer_norm_eps):
    centered = x - x.mean(-1, keepdims=True)
    return (
        centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * params["scale"] + params["bias"]
    )


def logits_by_hand(params, sides, attends):
    """The logits of one text, or of a pair (Wang et al. 2019)."""
    lstm = params["lstm"]
    words = params["encoder"]["embeddings"]["word_embeddings"]
    states = [numpy_lstm.bilstm(lstm, normalized(words[side], lstm["norm"])) for side in sides]
    if attends:
        scores = states[0] @ states[1].T
        exponents = np.exp(scores - scores.max())
        contexts = [
            exponents / exponents.sum(axis=1, keepdims=True) @ states[1],
            exponents.T / exponents.T.sum(axis=1, keepdims=True) @ states[0],
        ]
        states = [
            numpy_lstm.bilstm(lstm, np.concatenate([x, context], axis=1), 1, "attended_")
            for x, context in zip(states, contexts, strict=True)
        ]
    u, *v = (x.max(axis=0) for x in states)
    features = np.concatenate([u, v[0], abs(u - v[0]), u * v[0]]) if v else u
    dense, out = params["head"]["dense"], params["classifier"]
    return np.tanh(features @ dense["kernel"] + dense["bias"]) @ out["kernel"] + out["bias"]


@pytest.mark.long
@pytest.mark.parametrize(
    "pairs, attends", [(False, False), (True, False), (True, True)], ids=["text", "pair", "attention"]
)
def test_packed_rows_give_what_a_calculation_by_hand_gives(pairs, attends):
    batch = packed_batch(rows=3, length=24, slots=2)
    expected = [*texts_of(batch)]
    if not pairs:  # the same tokens as one text
        batch["first_lengths"][batch["first_lengths"] > 0] = 24
        expected = [(row, slot, [np.concatenate(sides)]) for row, slot, sides in expected]
    model, variables = make(pairs, attends)
    params = jax.tree.map(np.asarray, variables["params"])
    rows = packed_inputs(batch) | {"input_ids": batch["input_ids"]}
    found = model.apply(variables, *(rows[name] for name in INPUTS), cls_positions=rows["cls_positions"])
    assert np.all(np.isfinite(found))
    for row, slot, sides in expected:
        np.testing.assert_allclose(found[row, slot], logits_by_hand(params, sides, attends), atol=2e-5)
    assert len(expected) > 3
