"""Poolings against means that are computed in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.heads.pooling import POOLINGS

LENGTHS = (1, 257, 385, 511)


def states(dtype):
    values = np.random.default_rng(0).normal(1, 0.1, (len(LENGTHS), 512, 16))
    return jnp.asarray(values, dtype)


def means(hidden):
    exact = np.asarray(hidden.astype(jnp.float32), np.float64)
    return np.stack([row[:length].mean(0) for row, length in zip(exact, LENGTHS, strict=True)])


def real_tokens():
    return jnp.asarray(np.arange(512) < np.array(LENGTHS)[:, None], jnp.int32)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_the_mean_of_more_than_256_tokens_is_rounded_only_once(dtype):
    hidden = states(dtype)
    found = POOLINGS["mean"](hidden, real_tokens(), None)
    assert found.dtype == dtype
    expected = means(hidden)
    half_step = float(jnp.finfo(dtype).eps) / 2
    np.testing.assert_allclose(
        np.asarray(found, np.float64), expected, rtol=max(1.01 * half_step, 2e-6), atol=0
    )


def test_the_mean_of_packed_sequences_and_of_an_empty_one():
    hidden = states(jnp.bfloat16)[:1]
    sequence_ids = jnp.asarray([[1] * 300 + [2] * 200 + [0] * 12], jnp.int32)
    found = POOLINGS["mean"](hidden, sequence_ids, jnp.asarray([[0, 300, 0]], jnp.int32))
    exact = np.asarray(hidden.astype(jnp.float32), np.float64)[0]
    expected = np.stack([exact[:300].mean(0), exact[300:500].mean(0), np.zeros(16)])
    np.testing.assert_allclose(np.asarray(found[0], np.float64), expected, rtol=2.0**-8)


def test_the_maximum_and_the_last_of_states_below_zero():
    hidden = -1 - np.random.default_rng(0).random((1, 8, 4)).astype(np.float32)
    ids, starts = jnp.asarray([[1, 1, 1, 2, 2, 0, 0, 0]]), jnp.asarray([[0, 3, 0]])
    highest = [hidden[0, :3].max(0), hidden[0, 3:5].max(0), np.zeros(4)]
    np.testing.assert_array_equal(POOLINGS["max"](jnp.asarray(hidden), ids, starts)[0], highest)
    np.testing.assert_array_equal(POOLINGS["last"](hidden, ids, starts)[0, :2], hidden[0, [2, 4]])
    np.testing.assert_array_equal(POOLINGS["max"](jnp.asarray(hidden), ids, None), hidden[:, :5].max(1))
    np.testing.assert_array_equal(POOLINGS["last"](hidden, ids, None), hidden[:, 4])
