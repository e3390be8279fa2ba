import jax.numpy as jnp
import numpy as np
import pytest
from support import encoder_oracle

from bert_jax.kernels.attention import apply_rotary
from bert_jax.kernels.xla_attention import attention_logits
from bert_jax.models import config, positions


def make(**fields):
    sizes = dict(hidden_size=8, num_attention_heads=2, vocab_size=10, num_hidden_layers=1)
    return config.from_dict(sizes | fields)


def embed(made, x, places, table):
    return positions.EMBED[made.position](made, x, jnp.int32(places), table)[0]


@pytest.mark.parametrize(
    "theta, expected",
    [
        (10_000.0, (-1.41335, 1.87912, -2.82886, 4.05819)),
        (160_000.0, (-1.41335, 1.96994, -2.82886, 4.01489)),
    ],
)
def test_rotary_turns_as_in_its_paper(theta, expected):
    x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
    angles = positions.rotary_angles(make(position="rotary", rotary_theta=theta), jnp.int32([[3]]))[theta]
    query, key = (apply_rotary(given, angles) for given in (x, 2 * x))
    np.testing.assert_allclose(query.ravel(), expected, atol=1e-5)
    np.testing.assert_allclose(key.ravel(), 2 * np.array(expected), atol=1e-5)


@pytest.mark.parametrize(
    "heads, powers",
    [
        (4, [-2, -4, -6, -8]),
        (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
        (16, [-0.5 * i for i in range(1, 17)]),
    ],
)
def test_alibi_slopes(heads, powers):
    np.testing.assert_allclose(np.log2(positions.alibi_slopes(heads)), powers, rtol=1e-6)


def test_alibi_falls_with_the_distance_to_either_side():
    zeros, ids = jnp.zeros((1, 3, 2, 4)), jnp.ones((1, 3), jnp.int32)
    logits = attention_logits(zeros, zeros, ids, slopes=positions.alibi_slopes(2))
    distances = np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    np.testing.assert_allclose(logits[0], [-(2.0**-4) * distances, -(2.0**-8) * distances])


def test_learned_positions_begin_at_their_offset():
    """RoBERTa's first token has row 2."""
    learned = make(position="learned", position_offset=2, max_position_embeddings=12)
    rows = jnp.arange(12.0)[:, None] * jnp.ones(8)
    found = embed(learned, jnp.ones((1, 3, 8)), [[0, 1, 9]], rows)
    np.testing.assert_array_equal(found[:, 0], [3, 4, 12])


def test_sinusoids_and_their_learned_factor():
    x, places = jnp.zeros((1, 3, 8)), [0, 5, 300]
    expected = np.stack([encoder_oracle.sinusoid(place, 8) for place in places])
    np.testing.assert_allclose(embed(make(position="sinusoid"), x, [places], None), expected, atol=3e-5)
    scaled = make(position="scaled_sinusoid")
    assert positions.table(scaled)[1:] == ((1,), ("norm",), 8**-0.5)
    np.testing.assert_allclose(embed(scaled, x, [places], jnp.array([2.0])), 2 * expected, atol=6e-5)
