import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import gradients

from bert_jax.kernels import attention as module
from bert_jax.kernels import xla_attention


def inputs(batch=2, length=128, heads=2, dim=64, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    query, key, value = (jax.random.normal(k, (batch, length, heads, dim)) for k in keys)
    ids = np.zeros((batch, length), np.int32)
    ids[0, :50], ids[0, 50:110] = 1, 2
    ids[1, :] = 1
    return query, key, value, jnp.asarray(ids)


def by_hand(query, key, value, ids, causal, window):
    """Computes attention in float64, one sequence, head and token at a time."""
    query, key, value, ids = (np.asarray(x, np.float64) for x in (query, key, value, ids))
    out = np.zeros_like(query)
    for b, q, n in np.ndindex(query.shape[:3]):
        near = [k for k in range(key.shape[1]) if abs(k - q) <= window and (not causal or k <= q)]
        seen = [k for k in near if ids[b, k] == ids[b, q]]
        logits = key[b, seen, n] @ query[b, q, n] / np.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max())
        out[b, q, n] = weights @ value[b, seen, n] / weights.sum()
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window, length", [(0, 24), (4, 24), (5, 24), (1, 5), (7, 22), (9, 24)])
def test_xla_against_a_loop_over_tokens(causal, window, length):
    """Local attention is right for rows of one or several blocks, with or without a partial block."""
    args = inputs(length=24, dim=8)
    query, key, value = (x[:, :length] for x in args[:3])
    ids = jnp.asarray([([1] * 10 + [2] * 8 + [0] * 6)[:length], [1] * length])
    out = module.attention(query, key, value, ids, implementation="xla", causal=causal, window=window)
    np.testing.assert_allclose(out, by_hand(query, key, value, ids, causal, window or length), atol=2e-6)


@pytest.mark.parametrize("window, slopes", [(0, None), (9, None), (0, np.array([0.5, 0.0625], np.float32))])
def test_attention_without_dropout_is_that_of_the_probabilities(window, slopes):
    """Values and gradients agree; on a CPU, float32 without dropout has a separate implementation."""
    query, key, value, _ = inputs(length=24, dim=8)
    ids = jnp.asarray([[1] * 10 + [2] * 8 + [0] * 6, [1] * 24])
    attend = functools.partial(
        module.attention, sequence_ids=ids, implementation="xla", window=window, slopes=slopes
    )

    def weighted(query, key, value):
        weights = xla_attention.probabilities(query, key, ids, False, window, slopes)
        return jnp.einsum("bnqk,bknd->bqnd", weights, value)

    gradients.assert_same(attend, weighted, (5 * query, key, value), jnp.cos(value), rtol=1e-6)


def masked(ids, **options):
    """Returns attention with zeros at padding."""
    real = (ids > 0)[..., None, None]
    return lambda *qkv: jnp.where(real, module.attention(*qkv, ids, **options), 0)


@pytest.mark.long
@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 20), (True, 20)])
def test_splash_equals_xla_with_gradients(causal, window):
    *qkv, ids = inputs(length=256 if window else 128)
    forms = (masked(ids, implementation=name, causal=causal, window=window) for name in ("splash", "xla"))
    gradients.assert_same(*forms, qkv, jnp.cos(qkv[0]), atol=1e-4)


@pytest.mark.gpu
def test_cudnn_equals_xla():
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU")
    *qkv, ids = inputs()
    qkv = [x.astype(jnp.bfloat16) for x in qkv]
    forms = (masked(ids, implementation=name) for name in ("cudnn", "xla"))
    both = (gradients.with_gradients(form, qkv, jnp.sin(qkv[0])) for form in forms)
    gradients.assert_close(
        *(jax.tree.map(jnp.float32, each) for each in both), rtol=0, atol=3e-2, scaled=True
    )


@pytest.mark.long
def test_dropout_is_applied_to_the_probabilities():
    query, key, _, ids = inputs(length=64, dim=8)
    value = jnp.ones((2, 64, 2, 8))
    out = module.attention(
        query, key, value, ids[:, :64], implementation="xla", dropout_rate=0.5, dropout_key=jax.random.key(0)
    )
    # Rows of probabilities that summed to 1 now sum to 2 x the fraction kept: a head's outputs are all equal,
    # with mean 1.
    assert float(jnp.ptp(out, axis=-1).max()) < 1e-5
    assert 0.8 < float(out.mean()) < 1.2 and float(out.std()) > 0.05
