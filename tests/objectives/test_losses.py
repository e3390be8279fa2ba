import jax
import jax.numpy as jnp
import numpy as np
import optax

from bert_jax.objectives import losses


def test_cross_entropy_and_its_gradient_against_optax():
    logits = 5 * jax.random.normal(jax.random.key(0), (4, 3, 17))
    labels = jax.random.randint(jax.random.key(1), (4, 3), 0, 17)
    weights = jnp.asarray(np.random.default_rng(0).integers(0, 2, (4, 3)), jnp.float32)

    def reference(logits):
        return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, labels) * weights)

    total, weight = losses.cross_entropy(logits, labels, weights)
    assert weight == weights.sum()
    np.testing.assert_allclose(total, reference(logits), rtol=1e-6)
    np.testing.assert_allclose(
        jax.grad(lambda x: losses.cross_entropy(x, labels, weights)[0])(logits),
        jax.grad(reference)(logits),
        atol=1e-6,
    )


def test_labels_without_weight_may_be_anything():
    logits = jnp.zeros((2, 5))
    total, weight = losses.cross_entropy(logits, jnp.array([-1, 99]), jnp.zeros(2))
    assert (total, weight) == (0, 0) and losses.mean((total, weight)) == 0
    assert not np.any(
        jax.grad(lambda x: losses.cross_entropy(x, jnp.array([-1, 99]), jnp.zeros(2))[0])(logits)
    )


def test_the_losses_of_bfloat16_outputs_are_computed_in_float32():
    outputs = (3 * jax.random.normal(jax.random.key(0), (6, 40))).astype(jnp.bfloat16)
    exact, weights = np.asarray(outputs, np.float64), jnp.arange(6) / 4
    labels = np.array([0, 5, 39, 7, 7, 2])
    targets = jnp.asarray(np.random.default_rng(0).integers(0, 2, (6, 40)), jnp.float32)
    probability = 1 / (1 + np.exp(-exact))
    for found, each in (
        (
            losses.cross_entropy(outputs, labels, weights),
            np.log(np.exp(exact).sum(axis=1)) - exact[np.arange(6), labels],
        ),
        (
            losses.binary_cross_entropy(outputs, targets, weights),
            -np.log(np.where(targets > 0, probability, 1 - probability)).mean(axis=1),
        ),
        (
            losses.squared_error(outputs[:, 0], jnp.full(6, 0.3), weights),
            (exact[:, 0] - np.float32(0.3)) ** 2,
        ),
    ):
        assert [x.dtype for x in found] == [jnp.float32] * 2
        np.testing.assert_allclose(found, [(each * np.asarray(weights)).sum(), weights.sum()], rtol=1e-6)


def test_a_tie_at_the_top_counts_by_its_size():
    labels = jnp.array([0, 3, 1])
    assert losses.accuracy(jnp.zeros((3, 4)), labels, jnp.ones(3)) == (0.75, 3.0)
    logits = jnp.array([[2.0, 2.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0], [2.0, 2.0, 2.0, 0.0]])
    total, weight = losses.accuracy(logits, labels, jnp.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose((total, weight), (0.5 + 0 + 3 / 3, 5))
    assert losses.accuracy(jnp.full((1, 4), jnp.nan), jnp.array([0]), jnp.ones(1)) == (0, 1)
