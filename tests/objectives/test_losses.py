import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

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


def test_large_logits_stay_finite():
    total, _ = losses.cross_entropy(jnp.array([[1e4, -1e4, 0.0]]), jnp.array([1]), jnp.ones(1))
    assert total == 2e4


def test_the_logits_of_a_row_may_be_far_below_those_of_another():
    logits, labels = jnp.array([[200.0, 200.0], [-200.0, -200.0]]), jnp.array([0, 1])
    total, pull = jax.vjp(lambda x: losses.cross_entropy(x, labels, jnp.ones(2))[0], logits)
    assert float(total) == pytest.approx(2 * np.log(2), rel=1e-4)
    np.testing.assert_allclose(*pull(jnp.float32(1)), [[-0.5, 0.5], [0.5, -0.5]], atol=1e-4)


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


def test_the_mean_of_a_small_weight():
    assert float(losses.mean((jnp.float32(0.02), jnp.float32(0.01)))) == pytest.approx(2)
    assert np.isnan(losses.mean((jnp.float32(0), jnp.float32(0)), otherwise=np.nan))


def test_accuracy():
    logits = jnp.array([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0], [0.0, 1.0, 5.0]])
    assert losses.accuracy(logits, jnp.array([1, 1, 2]), jnp.ones(3)) == (2.0, 3.0)
    assert losses.accuracy(logits, jnp.array([1, 1, 2]), jnp.array([1.0, 1.0, 0.0])) == (1.0, 2.0)


def test_a_tie_at_the_top_counts_by_its_size():
    labels = jnp.array([0, 3, 1])
    assert losses.accuracy(jnp.zeros((3, 4)), labels, jnp.ones(3)) == (0.75, 3.0)
    logits = jnp.array([[2.0, 2.0, 0.0, 0.0], [2.0, 2.0, 0.0, 0.0], [2.0, 2.0, 2.0, 0.0]])
    total, weight = losses.accuracy(logits, labels, jnp.array([1.0, 1.0, 3.0]))
    np.testing.assert_allclose((total, weight), (0.5 + 0 + 3 / 3, 5))
    assert losses.accuracy(jnp.full((1, 4), jnp.nan), jnp.array([0]), jnp.ones(1)) == (0, 1)


def test_accuracy_of_bfloat16_logits_is_not_above_that_of_float32():
    # Logits as close together as an untrained model's: rounded to 8 bits, hundreds share the maximum.
    logits = 6 + 0.01 * jax.random.normal(jax.random.key(0), (512, 2000))
    labels = jax.random.randint(jax.random.key(1), (512,), 0, 2000)
    rounded = logits.astype(jnp.bfloat16)
    assert jnp.mean(jnp.sum(rounded == rounded.max(-1, keepdims=True), -1)) > 100
    exact, approximate = (
        float(losses.mean(losses.accuracy(x, labels, jnp.ones(512)))) for x in (logits, rounded)
    )
    assert abs(approximate - exact) < 0.005
