"""The optimizer against the reference's formulas in float64, and its known answer."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import pytest

from bert_jax import defaults, optimizer
from bert_jax.errors import UserError


def settings(**changes):
    return ml_collections.ConfigDict(defaults.pretrain().optimizer.to_dict() | changes)


def test_1000_steps_against_the_formulas_in_float64():
    rng = np.random.default_rng(0)
    params = {
        "dense": {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)},
        "norm": {"scale": np.ones(4), "bias": np.zeros(4)},
        "word_embeddings": rng.normal(size=(5, 4)),
    }
    decays = {"kernel", "word_embeddings"}
    rate, warmup, total, b1, b2, eps, decay, clip = 1e-3, 100, 1000, 0.9, 0.999, 1e-6, 0.01, 1.0
    tx, schedule = optimizer.make_optimizer(settings(learning_rate=rate, warmup_steps=warmup), total)

    mine = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    state = tx.init(mine)

    @jax.jit
    def step(number, mine, state, grads):
        updates, state = tx.update(grads, state, mine)
        return jax.tree.map(lambda p, u: p - schedule(number) * u, mine, updates), state

    flat, tree = jax.tree_util.tree_flatten_with_path(params)
    names = [path[-1].key for path, _ in flat]
    exact = [np.array(leaf, np.float64) for _, leaf in flat]
    m, v = ([np.zeros_like(leaf) for leaf in exact] for _ in range(2))
    for number in range(total):
        grads = [np.float32(rng.normal(size=leaf.shape) * rng.choice([0.01, 3.0])) for leaf in exact]
        mine, state = step(number, mine, state, jax.tree.unflatten(tree, grads))
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in grads))
        lr = rate * number / warmup if number < warmup else rate * (1 - number / total)
        for i, g in enumerate(grads):
            g = g.astype(np.float64) * min(1, clip / norm)
            m[i], v[i] = b1 * m[i] + (1 - b1) * g, b2 * v[i] + (1 - b2) * g * g
            update = m[i] / (np.sqrt(v[i]) + eps)
            if names[i] in decays:
                update = update + decay * exact[i]
            exact[i] = exact[i] - lr * update
    for a, b in zip(jax.tree.leaves(mine), exact, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-6)


def test_known_answer_of_the_reference():
    """google-research/bert, optimization_test.py: w = [.1, -.2, -.1] reaches [.4, .2, -.5] in 100 steps at
    rate .2."""
    tx, schedule = optimizer.make_optimizer(
        settings(weight_decay=0.0, clip_norm=0.0, learning_rate=0.2, warmup_steps=0, schedule="constant"), 100
    )
    target = jnp.array([0.4, 0.2, -0.5])
    params = {"w": jnp.array([0.1, -0.2, -0.1])}
    state = tx.init(params)
    for step in range(100):
        grads = jax.grad(lambda p: jnp.mean((target - p["w"]) ** 2))(params)
        updates, state = tx.update(grads, state, params)
        params = jax.tree.map(lambda p, u, step=step: p - schedule(step + 1) * u, params, updates)
    np.testing.assert_allclose(params["w"], target, atol=1e-2)


def test_the_bias_corrected_one_is_optaxs():
    tx, _ = optimizer.make_optimizer(settings(name="adamw_bias_corrected", clip_norm=0.0), 10**6)
    theirs = optax.adamw(1.0, b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01)
    params = {"kernel": jnp.array([1.0, -2.0])}
    grads = {"kernel": jnp.array([0.3, -0.1])}
    mine, _ = tx.update(grads, tx.init(params), params)
    reference, _ = theirs.update(grads, theirs.init(params), params)
    np.testing.assert_allclose(-mine["kernel"], reference["kernel"], rtol=1e-6)
    plain, _ = optimizer.make_optimizer(settings(clip_norm=0.0), 10**6)
    assert not np.allclose(plain.update(grads, plain.init(params), params)[0]["kernel"], mine["kernel"])


def test_schedules():
    at = [0, 1, 50, 99, 100, 550, 1000]
    reference = optimizer.reference_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([reference(t) for t in at], [0, 0.01, 0.5, 0.99, 0.9, 0.45, 0], atol=1e-6)
    usual = optimizer.warmup_then_decay_schedule(1.0, 100, 1000)
    np.testing.assert_allclose([usual(t) for t in at], [0, 0.01, 0.5, 0.99, 1.0, 0.5, 0], atol=1e-6)
    np.testing.assert_allclose(
        [optimizer.constant_schedule(1.0, 100, 1000)(t) for t in at], [0, 0.01, 0.5, 0.99, 1, 1, 1]
    )


def test_what_decays():
    params = {
        "layers": {"query": {"kernel": 0, "bias": 0}, "norm": {"scale": 0, "bias": 0}},
        "word_embeddings": 0,
        "mlm": {"bias": 0},
    }
    assert optimizer.decay_mask(params) == {
        "layers": {"query": {"kernel": True, "bias": False}, "norm": {"scale": False, "bias": False}},
        "word_embeddings": True,
        "mlm": {"bias": False},
    }


@pytest.mark.parametrize(
    "changes,said",
    [
        (dict(name="sgd"), "adamw"),
        (dict(schedule="cosine"), "reference"),
        (dict(warmup_steps=100), "steps=100: set --config.optimizer.warmup_steps .a tenth: 10., or"),
    ],
)
def test_mistakes(changes, said):
    with pytest.raises(UserError, match=said):
        optimizer.make_optimizer(settings(**changes), 100)
