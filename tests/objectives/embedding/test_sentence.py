"""Sentence embeddings: the losses equal plain loops, also in packed rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.text_groups import groups
from support.tiny_model import draw_parameters, tiny_config

from bert_jax.objectives.embedding.sentence import SentenceEmbedding, cosent
from bert_jax.tasks.rows import batches, packing

CONFIG = tiny_config(40).replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GROUPS = 6


@functools.cache
def programs(objective):
    """Returns programs for the loss, metrics and gradient of a batch, and for the vectors of its rows."""

    def loss(params, batch):
        batch = objective.prepare(batch, None, True)
        pairs, found = objective.loss(params, batch, None)
        return pairs["task"][0], (pairs["task"], found, objective.weights(batch)["task"])

    def vectors(params, batch):
        return objective.row_outputs(params, objective.prepare(batch, None, True), None)

    return jax.jit(jax.value_and_grad(loss, has_aux=True)), jax.jit(vectors)


def compute(objective, data, order, packed=False):
    """Returns (sum, weight) of the loss, the metrics, the weights, the gradient, and the row vectors."""
    plain = batches.make_batch(data, order, (16,))
    shape = packing.Packing(24, 12, (4,), 1, 1.0)
    rows = batches.expand(order, data.rows_per_example)
    batch = packing.make_batch(data, rows, shape) if packed else plain
    params = jax.tree.map(lambda x: 5 * x, draw_parameters(objective))
    with_gradient, vectors_of = programs(objective)
    (_, found), gradient = with_gradient(params, batch)
    return *found, gradient, np.asarray(vectors_of(params, plain), np.float64)


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def info_nce(vectors, texts, temperature, symmetric=False):
    """Computes the loss of each anchor and whether its positive ranks first."""
    losses, right = [], []
    known = {anchor: {anchor, *texts[texts[:, 0] == anchor, 1]} for anchor in texts[:, 0]}
    for i, anchor in enumerate(texts[:, 0]):
        logits = [cosine(vectors[i, 0], vectors[i, 1]) / temperature]
        back = list(logits)
        for j in range(len(texts)):
            for role in range(1, texts.shape[1]):
                if texts[j, role] not in known[anchor]:
                    logits.append(cosine(vectors[i, 0], vectors[j, role]) / temperature)
            if texts[i, 1] not in known[texts[j, 0]]:
                back.append(cosine(vectors[j, 0], vectors[i, 1]) / temperature)
        loss = np.log(np.sum(np.exp(logits))) - logits[0]
        if symmetric:
            loss = (loss + np.log(np.sum(np.exp(back))) - back[0]) / 2
        losses.append(loss)
        right.append(logits[0] >= max(logits))
    return np.array(losses), np.array(right)


TEXTS = {
    "different": np.arange(18).reshape(6, 3),
    "equal": np.array([[0, 1, 2], [0, 3, 4], [5, 1, 6], [7, 8, 1], [9, 10, 9], [11, 12, 11]]),
    "several positives": np.array([[0, 1, 2], [0, 3, 1], [4, 3, 5], [6, 1, 3], [7, 8, 9], [7, 10, 3]]),
    "single": np.array([[0, 0, 1], [2, 2, 0], [3, 3, 4], [5, 5, 6], [7, 7, 8], [9, 9, 10]]),
}


@functools.cache
def of_triples(symmetric):
    return SentenceEmbedding(CONFIG, group=3, temperature=0.3, symmetric=symmetric)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_an_anchor_finds_its_positive_among_the_texts_of_the_batch(name, symmetric, packed):
    texts, lengths = TEXTS[name], np.random.default_rng(1).integers(4, 12, 18)
    objective = of_triples(symmetric)
    order = np.array([3, 0, 5, 1, 4, -1, 2])
    (total, weight), metrics, expected_weight, _, vectors = compute(
        objective, groups(texts, lengths), order, packed
    )
    real = order >= 0
    losses, right = info_nce(vectors[real], texts[order[real]], 0.3, symmetric)
    assert weight == expected_weight == GROUPS
    np.testing.assert_allclose(total, losses.sum(), rtol=1e-5)
    assert metrics["accuracy"][0] == right.sum() and metrics["accuracy"][1] == GROUPS


@pytest.mark.long
def test_sizes_have_the_mean_of_the_losses_of_their_dimensions():
    data = groups(TEXTS["different"], [6] * 18)
    order = np.arange(GROUPS)
    objective = SentenceEmbedding(CONFIG, group=3, sizes=(4, 8))
    (total, _), _, _, _, vectors = compute(objective, data, order)
    found = [info_nce(vectors[..., :size], TEXTS["different"], 0.05)[0].sum() for size in (4, 8, 32)]
    np.testing.assert_allclose(total, np.mean(found), rtol=1e-5)


def check_same_sums(a, b):
    """Compares relative to the largest number: sums of canceling terms have the rounding error of the terms.

    In the exponent of a loss, the rounding error of a cosine, 1e-7, is divided by the temperature, .05.
    """
    scale = max(np.abs(b).max(), 0.2)
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["contrastive", "cosent", "classes"])
def test_packed_rows_have_the_same_gradient(kind):
    rng = np.random.default_rng(2)
    texts, lengths = np.arange(12).reshape(6, 2), rng.integers(4, 12, 12)
    targets = (
        rng.integers(0, 3, 6).astype(np.int32) if kind == "classes" else rng.random(6).astype(np.float32)
    )
    data = groups(texts, lengths, targets)
    objective = SentenceEmbedding(CONFIG, kind, num_labels=3 * (kind == "classes"))
    order = np.array([5, 2, 0, -1, 1, 3])
    one = compute(objective, data, order)
    other = compute(objective, data, order, packed=True)
    jax.tree.map(check_same_sums, one[:4], other[:4])


def test_cosent_compares_all_pairs_that_differ():
    rng = np.random.default_rng(0)
    cosines, targets = rng.uniform(-1, 1, 9), np.array([0, 1, 2, 2, 5, 0, 3, 9, 9.0])
    weights = np.array([1] * 7 + [0] * 2)
    terms = [
        np.exp((cosines[j] - cosines[i]) / 0.05)
        for i in range(7)
        for j in range(7)
        if targets[i] > targets[j]
    ]
    arrays = (jnp.asarray(x, jnp.float32) for x in (cosines, targets, weights))
    total, count = cosent(*arrays, 0.05)
    assert count == 7
    np.testing.assert_allclose(total / count, np.log1p(np.sum(terms)), rtol=1e-5)


@pytest.mark.long
def test_classes_are_predicted_from_both_vectors_and_their_distance():
    texts = np.arange(8).reshape(4, 2)
    targets = np.array([2, 0, 1, 1], np.int32)
    objective = SentenceEmbedding(CONFIG, "classes", num_labels=3)
    (total, _), _, _, _, vectors = compute(objective, groups(texts, [6] * 8, targets), np.arange(4))
    kernel = 5 * np.asarray(draw_parameters(objective)["classifier"]["kernel"])
    u, v = vectors[:, 0], vectors[:, 1]
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ kernel
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(4), targets]
    np.testing.assert_allclose(total, expected.sum(), rtol=1e-5)
