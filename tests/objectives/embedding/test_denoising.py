"""Denoising of texts: deleted tokens, the loss and its gradient compared with NumPy, and parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax
from support import encoder_oracle
from support.models import SPECIAL, packed_batch, tiny_config
from support.tiny_model import draw_parameters

from bert_jax.objectives.causal_lm import CausalLM
from bert_jax.objectives.embedding.denoising import DenoisingAutoEncoder, decoder_params, kept_tokens

CONFIG = tiny_config(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
NAMES = ("input_ids", "position_ids", "sequence_ids")


def make(config=CONFIG, **fields):
    return DenoisingAutoEncoder(config, SPECIAL, **fields)


def texts(rows=6, packed=False, seed=0):
    """Returns a batch as in fine-tuning, with one text per row or, if packed, up to three."""
    batch = packed_batch(rows=rows, slots=3 if packed else 1, seed=seed)
    names = ["input_ids", "lengths", "first_lengths", *(["starts"] if packed else [])]
    batch = {name: batch[name] for name in names}
    weights = (batch["first_lengths"] > 0).astype(np.float32)
    if not packed:
        return batch | {"first_lengths": batch["lengths"], "weights": weights[:, 0]}
    ends = np.minimum(
        np.append(batch["starts"][:, 1:], np.full((rows, 1), 99), axis=1), batch["lengths"][:, None]
    )
    return batch | {"first_lengths": np.maximum(ends - batch["starts"], 0), "weights": weights}


def prepare(objective, batch, seed=0):
    return jax.tree.map(np.asarray, objective.prepare(batch, jax.random.key(seed), True))


def sequences(prepared, prefix=""):
    """Returns the tokens of each text in row order; asserts that their positions start at 0."""
    found = []
    for ids, positions, numbers in zip(*(prepared[f"{prefix}{name}"] for name in NAMES), strict=True):
        for number in range(1, numbers.max() + 1):
            of_text = numbers == number
            assert positions[of_text].tolist() == list(range(of_text.sum()))
            found.append(ids[of_text].tolist())
    return found


def is_part_in_order(part, whole):
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("deletion", [0.0, 0.6, 0.99])
def test_deleted_texts_keep_their_order_their_special_tokens_and_one_token_more(packed, deletion):
    prepared = prepare(make(deletion=deletion), texts(rows=12, packed=packed))
    whole, damaged = sequences(prepared), sequences(prepared, "damaged_")
    assert len(whole) == len(damaged) >= 12
    for text, rest in zip(whole, damaged, strict=True):
        assert is_part_in_order(rest, text)
        special = [token for token in text if token in SPECIAL]
        assert [token for token in rest if token in SPECIAL] == special
        assert len(special) < len(rest) <= len(text)
    if packed:
        starts = np.take_along_axis(prepared["damaged_input_ids"], prepared["damaged_cls_positions"], axis=1)
        assert np.all(starts[prepared["weights"] > 0] == 2)
    lengths = [sum(map(len, each)) for each in (damaged, whole)]
    assert (lengths[0] == lengths[1]) == (deletion == 0)
    assert np.all(prepared["tokens"] == prepared["lengths"])


def test_the_share_is_the_probability_of_each_token():
    ids = np.full((400, 66), 7, np.int32)
    ids[:, 0], ids[:, -1] = 2, 3
    rows = {"input_ids": jnp.asarray(ids), "sequence_ids": jnp.ones_like(ids)}
    kept = np.asarray(kept_tokens(jax.random.key(1), rows, SPECIAL, 0.6))[:, 1:-1]
    assert abs(kept.mean() - 0.4) < 0.01
    assert np.abs(kept.mean(axis=0) - 0.4).max() < 0.1 and kept.sum(axis=1).std() > 2


def test_rows_have_deletions_of_their_own_at_each_step():
    batch = texts(rows=4)
    batch = {name: np.repeat(x[:1], 4, axis=0) for name, x in batch.items()}
    objective = make(deletion=0.5)
    first, again, second = (prepare(objective, batch, seed)["damaged_input_ids"] for seed in (0, 0, 1))
    assert len({tuple(row) for row in first}) > 1
    np.testing.assert_array_equal(first, again)
    assert np.any(first != second)


def states(config, params, ids, vector=None):
    """Computes the last hidden states of one text in NumPy and float64."""
    places = np.arange(len(ids))
    arrays = np.array(ids), 0 * places, places, 0 * places
    return encoder_oracle.states(config, params["encoder"], *arrays, vector)[0][-1]


def expected_loss(params, prepared):
    """Computes the sum of the loss, the number of tokens, and the number of correct predictions."""
    total, count, hits, head = 0.0, 0, 0, params["mlm"]
    for text, damaged in zip(sequences(prepared), sequences(prepared, "damaged_"), strict=True):
        vector = states(CONFIG, params, damaged).mean(axis=0)
        decoded = states(CONFIG.replace(causal=True), decoder_params(params), text, vector)
        decoded = encoder_oracle.ACTIVATIONS["gelu"](encoder_oracle.dense(decoded, head["transform"]))
        decoded = encoder_oracle.norm(CONFIG, decoded, head["transform_norm"])
        logits = decoded @ params["encoder"]["embeddings"]["word_embeddings"].T + head["bias"]
        logits, labels = logits[:-1], np.array(text[1:])
        total -= log_softmax(logits, axis=-1)[np.arange(len(labels)), labels].sum()
        count, hits = count + len(labels), hits + int((logits.argmax(-1) == labels).sum())
    return total, count, hits


@functools.cache
def drawn():
    """Returns parameters for which every part of the model affects the loss."""
    rng = np.random.default_rng(5)
    return jax.tree.map(
        lambda x: 4 * x + jnp.asarray(rng.normal(0, 0.1, x.shape), jnp.float32), draw_parameters(make())
    )


@functools.cache
def loss_and_gradient():
    def loss(params, prepared):
        pairs, metrics = make().loss(params, prepared, None)
        return pairs["task"][0], (pairs["task"][1], metrics["accuracy"])

    return jax.jit(jax.value_and_grad(loss, has_aux=True))


@pytest.mark.long
@pytest.mark.parametrize("packed", [False, True])
def test_the_loss_is_that_of_numpy(packed):
    params, prepared = drawn(), prepare(make(), texts(packed=packed, seed=3))
    (total, (weight, accuracy)), gradient = loss_and_gradient()(params, prepared)
    precise = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    expected, count, hits = expected_loss(precise, prepared)
    assert float(weight) == float(make().weights(prepared)["task"]) == count
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    assert float(accuracy[0]) == pytest.approx(hits) and float(accuracy[1]) == count

    # Gradients reach the encoder only through the vector.
    for group in ("encoder", "mlm", "decoder"):
        assert all(np.any(x) for x in jax.tree.leaves(gradient[group]))


@pytest.mark.long
def test_both_networks_draw_dropout_of_their_own():
    """With cross-attention that outputs zeros, the decoder is a causal language model; its dropout differs
    from the encoder's for the same key."""
    config = CONFIG.replace(hidden_dropout_prob=0.3)
    objective, causal = make(config), CausalLM(config.replace(causal=True))
    params = draw_parameters(objective)
    output = params["decoder"]["layers"]["stack"]["layer"]["cross_attention"]["output"]
    output["kernel"] = 0 * output["kernel"]
    prepared = prepare(objective, texts(rows=2))

    @jax.jit
    def losses(rngs):
        restored = objective.loss(params, prepared, rngs)[0]["task"][0]
        return restored, causal.loss(params, prepared, rngs)[0]["clm"][0]

    restored, expected = losses(None)
    assert float(restored) == pytest.approx(float(expected), rel=1e-5)
    restored, of_equal_dropout = losses({"dropout": jax.random.key(0)})
    assert abs(float(restored) - float(of_equal_dropout)) > 1e-3
    assert float(losses({"dropout": jax.random.key(0)})[0]) == float(restored)
