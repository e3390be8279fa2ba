import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import attention as module
from bert_jax.kernels import xla_attention


def inputs(batch=2, length=128, heads=2, dim=64, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    query, key, value = (jax.random.normal(k, (batch, length, heads, dim)) for k in keys)
    ids = np.zeros((batch, length), np.int32)
    ids[0, :50], ids[0, 50:110] = 1, 2
    ids[1, :] = 1
    return query, key, value, jnp.asarray(ids)


def by_hand(query, key, value, ids, causal, window=10_000):
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
def test_xla_against_a_loop_over_tokens(causal):
    args = inputs(length=24, dim=8)
    ids = jnp.asarray(np.repeat([[1] * 10 + [2] * 8 + [0] * 6], 2, 0))
    out = module.attention(*args[:3], ids, implementation="xla", causal=causal)
    np.testing.assert_allclose(out, by_hand(*args[:3], ids, causal), atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window, length", [(4, 24), (5, 24), (1, 5), (7, 22), (9, 24)])
def test_local_attention_against_a_loop_over_tokens(causal, window, length):
    """Local attention is right for rows of one or several blocks, with or without a partial block."""
    args = inputs(length=24, dim=8)
    query, key, value = (x[:, :length] for x in args[:3])
    ids = jnp.asarray([([1] * 10 + [2] * 8 + [0] * 6)[:length], [1] * length])
    out = module.attention(query, key, value, ids, implementation="xla", causal=causal, window=window)
    np.testing.assert_allclose(out, by_hand(query, key, value, ids, causal, window), atol=2e-6)


@pytest.mark.parametrize("window, slopes", [(0, None), (9, None), (0, np.array([0.5, 0.0625], np.float32))])
def test_attention_without_dropout_is_that_of_the_probabilities(window, slopes):
    """Values and gradients agree; on a CPU, float32 without dropout has a separate implementation."""
    query, key, value, _ = inputs(length=24, dim=8)
    ids = jnp.asarray([[1] * 10 + [2] * 8 + [0] * 6, [1] * 24])

    def loss(apply):
        return lambda *of: jnp.sum(jnp.sin(apply(*of)))

    def attend(query, key, value):
        return module.attention(query, key, value, ids, implementation="xla", window=window, slopes=slopes)

    def weighted(query, key, value):
        weights = xla_attention.probabilities(query, key, ids, False, window, slopes)
        return jnp.einsum("bnqk,bknd->bqnd", weights, value)

    of_all = [jax.value_and_grad(loss(apply), argnums=(0, 1, 2)) for apply in (attend, weighted)]
    found, expected = (of(5 * query, key, value) for of in of_all)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("causal, window", [(False, 0), (True, 0), (False, 20), (True, 20)])
def test_splash_equals_xla_with_gradients(causal, window):
    query, key, value, ids = inputs(length=256 if window else 128)
    real = (ids > 0)[..., None, None]

    def form(implementation):
        return lambda q, k, v: module.attention(
            q, k, v, ids, implementation=implementation, causal=causal, window=window
        )

    splash, xla = form("splash"), form("xla")

    def loss(f):
        return lambda *qkv: jnp.sum(jnp.where(real, jnp.sin(f(*qkv)), 0))

    np.testing.assert_allclose(
        jnp.where(real, splash(query, key, value), 0), jnp.where(real, xla(query, key, value), 0), atol=2e-5
    )
    for mine, theirs in zip(
        jax.grad(loss(splash), (0, 1, 2))(query, key, value),
        jax.grad(loss(xla), (0, 1, 2))(query, key, value),
        strict=True,
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.gpu
def test_cudnn_equals_xla():
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU")
    query, key, value, ids = inputs()
    qkv = [x.astype(jnp.bfloat16) for x in (query, key, value)]
    real = np.asarray(ids > 0)[..., None, None]

    def value_and_gradients(name):
        def attend(*qkv):
            out = module.attention(*qkv, ids, implementation=name)
            return jnp.where(real, out, 0)

        out, pull = jax.vjp(attend, *qkv)
        return [np.asarray(x, np.float32) for x in (out, *pull(jnp.sin(out)))]

    for mine, theirs in zip(*map(value_and_gradients, ("cudnn", "xla")), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-2 * np.abs(theirs).max())


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
