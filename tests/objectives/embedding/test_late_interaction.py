"""Late interaction: scores and losses equal plain loops over tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.text_groups import groups
from support.tiny_model import draw_parameters, tiny_config

from bert_jax.objectives.embedding.late_interaction import LateInteraction
from bert_jax.tasks.rows import batches

CONFIG = tiny_config(40).replace(
    num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
)
QUERY, SKIPPED, MASK = 7, (5, 6), 4


def by_loops(query, document, counted):
    """Computes the score of one query [Q, H] and one document [L, H]."""
    total = 0.0
    for token in query:
        total += max(token @ other for other, counts in zip(document, counted, strict=True) if counts)
    return total


# Models with equal modules share programs, one for each length.
@functools.partial(jax.jit, static_argnums=0)
def states_of(model, params, ids):
    length = jnp.arange(ids.shape[1])[None]
    return model.apply({"params": params}, ids, 0 * length, length, 0 * length + 1)


def vectors_of(objective, params, row):
    """Computes the token vectors of a single row."""
    states = states_of(objective.model, {**params}, np.asarray(row)[None])
    vectors = np.asarray(states[0], np.float64)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


TEXTS = {
    "different": np.arange(18).reshape(6, 3),
    "equal": np.array([[0, 1, 2], [0, 3, 4], [5, 1, 6], [7, 8, 1], [9, 10, 9], [11, 12, 11]]),
}


@functools.cache
def of_triples():
    """Returns an objective, its parameters, and the compiled loss of a batch."""
    objective = LateInteraction(CONFIG, size=8, query_length=QUERY, group=3, temperature=0.5, skipped=SKIPPED)
    loss = jax.jit(lambda params, batch: objective.loss(params, batch, None))
    return objective, jax.tree.map(lambda x: 5 * x, draw_parameters(objective)), loss


@pytest.mark.long
@pytest.mark.parametrize("name", TEXTS)
def test_a_query_finds_its_document_among_those_of_the_batch(name):
    texts = TEXTS[name]
    data = groups(texts, np.random.default_rng(1).integers(4, 12, 18), query_length=QUERY)
    objective, params, loss = of_triples()
    order = np.array([3, 0, 5, 1, 4, -1, 2])
    batch = objective.prepare(batches.make_batch(data, order, (16,)), None, True)
    pairs, metrics = loss(params, batch)

    rows = [data.tokens[begin:end] for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    assert any(np.isin(row, SKIPPED).any() for row in rows)
    found = [vectors_of(objective, params, row) for row in rows]
    losses, right = [], []
    for i in range(6):

        def score(j, role, i=i):
            counted = ~np.isin(rows[3 * j + role], SKIPPED)
            return by_loops(found[3 * i], found[3 * j + role], counted) / 0.5

        logits = [score(i, 1)]
        relevant = texts[texts[:, 0] == texts[i, 0], 1]
        for j in range(6):
            for role in (1, 2):
                if texts[j, role] not in (texts[i, 0], *relevant):
                    logits.append(score(j, role))
        losses.append(np.log(np.sum(np.exp(logits))) - logits[0])
        right.append(logits[0] >= max(logits))
    total, weight = pairs["task"]
    assert weight == objective.weights(batch)["task"] == 6
    np.testing.assert_allclose(total, np.sum(losses), rtol=1e-5)
    assert metrics["accuracy"][0] == np.sum(right)


@pytest.mark.long
def test_predictions_are_the_vectors_of_all_tokens():
    data = groups(np.arange(6).reshape(3, 2), [5, 9, 12, 4, 6, 11], query_length=QUERY)
    objective = LateInteraction(CONFIG, size=8, query_length=QUERY)
    params = draw_parameters(objective)
    found = np.asarray(jax.jit(objective.predict)(params, batches.make_batch(data, np.arange(3), (16,))))
    assert found.shape == (6, 16, 8) and found.dtype == np.float16
    for row, (begin, end) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        expected = vectors_of(objective, params, data.tokens[begin:end])
        np.testing.assert_allclose(found[row, : end - begin], expected, atol=1e-3)
