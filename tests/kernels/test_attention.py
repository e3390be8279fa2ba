import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh

from bert_jax.errors import UserError
from bert_jax.kernels import attention as module
from bert_jax.kernels import platform, xla_attention
from bert_jax.parallel import sharding


def inputs(batch=2, length=128, heads=2, dim=64, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    query, key, value = (jax.random.normal(k, (batch, length, heads, dim)) for k in keys)
    ids = np.zeros((batch, length), np.int32)
    ids[0, :50], ids[0, 50:110] = 1, 2
    ids[1, :] = 1
    return query, key, value, jnp.asarray(ids)


def by_hand(query, key, value, ids, causal, window=10_000):
    """One sequence, one head, one token at a time, in float64."""
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
    """With rows of one block and of several, whole ones or not."""
    args = inputs(length=24, dim=8)
    query, key, value = (x[:, :length] for x in args[:3])
    ids = jnp.asarray([([1] * 10 + [2] * 8 + [0] * 6)[:length], [1] * length])
    out = module.attention(query, key, value, ids, implementation="xla", causal=causal, window=window)
    np.testing.assert_allclose(out, by_hand(query, key, value, ids, causal, window), atol=2e-6)


@pytest.mark.parametrize("window, slopes", [(0, None), (9, None), (0, np.array([0.5, 0.0625], np.float32))])
def test_attention_without_dropout_is_that_of_the_probabilities(window, slopes):
    """Values and gradients; on a CPU float32 without dropout has a form of its own."""
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
def test_a_window_has_as_many_keys_as_published():
    """ModernBERT's local_attention of 128 is 64 tokens to each side, and the token itself."""
    length, eye = 300, jnp.eye(300)[None, :, None]
    flat, ids = jnp.zeros((1, length, 1, length)), jnp.ones((1, length), jnp.int32)
    weights = module.attention(flat, flat, eye, ids, implementation="xla", window=64)[0, :, 0]
    assert [int((weights[token] > 0).sum()) for token in (0, 64, 150, 299)] == [65, 129, 129, 65]


def test_local_attention_costs_less_than_global():
    """Products and gradients of rows of 1,024 tokens: 3 x 64 keys per query in place of 1,024."""

    def flops(window):
        def loss(x):
            return jnp.sum(module.attention(x, x, x, ids, implementation="xla", window=window))

        ids, x = jnp.ones((1, 1024), jnp.int32), jax.ShapeDtypeStruct((1, 1024, 2, 64), jnp.float32)
        return jax.jit(jax.grad(loss)).lower(x).compile().cost_analysis()["flops"]

    assert flops(64) < 0.25 * flops(0)


@pytest.mark.long
def test_dropout_of_local_attention():
    query, key, _, ids = inputs(length=64, dim=8)
    value = jnp.ones((2, 64, 2, 8))
    out = module.attention(
        query,
        key,
        value,
        ids,
        implementation="xla",
        window=8,
        dropout_rate=0.5,
        dropout_key=jax.random.key(0),
    )
    assert 0.9 < float(out.mean()) < 1.1 and float(out.std()) > 0.1


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
@pytest.mark.parametrize("fused, rate", [("cudnn", 0.0), ("triton", 0.0), ("triton", 0.1)])
def test_kernels_of_gpus_equal_xla(fused, rate):
    if jax.default_backend() != "gpu":
        pytest.skip("needs an NVIDIA GPU")
    query, key, value, ids = inputs()
    qkv = [x.astype(jnp.bfloat16) for x in (query, key, value)]
    real = np.asarray(ids > 0)[..., None, None]

    def value_and_gradients(name):
        def attend(*qkv):
            options = dict(dropout_rate=rate, dropout_key=jax.random.key(1))
            out = module.attention(*qkv, ids, implementation=name, **options)
            return jnp.where(real, out, 0)

        out, pull = jax.vjp(attend, *qkv)
        return [np.asarray(x, np.float32) for x in (out, *pull(jnp.sin(out)))]

    for mine, theirs in zip(*map(value_and_gradients, (fused, "xla")), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=3e-2 * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_auto_lowers_for_cuda(dtype, monkeypatch):
    if jax.__version_info__ >= (0, 12) and dtype == "bfloat16":
        pytest.skip("jax 0.12 lowers the cuDNN kernel only where the devices are")
    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)  # jaxlib for CPU has no cuDNN to ask
    gpu = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
    x, ids = jnp.zeros((2, 128, 2, 64), dtype), jnp.ones((2, 128), jnp.int32)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=gpu)):
        traced = jax.jit(lambda x: module.attention(x, x, x, ids)).trace(x)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert ("__cudnn$fmha" in text) == (dtype == "bfloat16")
    assert ("__gpu$xla.gpu.triton" in text) == (dtype == "float32")


@pytest.mark.parametrize("length", [1024, 4096])
def test_windows_are_lowered_for_tpus(length):
    tpu = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    x = jax.ShapeDtypeStruct((2, length, 2, 64), jnp.bfloat16)
    ids = jax.ShapeDtypeStruct((2, length), jnp.int32)

    def loss(x, ids):
        return jnp.sum(module.attention(x, x, x, ids, window=64).astype(jnp.float32))

    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=tpu)):
        traced = jax.jit(jax.value_and_grad(loss)).trace(x, ids)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert text.count("tpu_custom_call") >= 2


def test_heads_of_a_device_where_tensors_are_split():
    assert platform.shards("heads") == 1
    for tensor in (1, 4):
        with sharding.on_mesh(sharding.make_mesh(-1, 1, tensor)):
            assert platform.shards("heads") == tensor


@pytest.mark.long
def test_dropout_is_applied_to_the_probabilities_and_refused_by_fused_kernels():
    query, key, _, ids = inputs(length=64, dim=8)
    value = jnp.ones((2, 64, 2, 8))
    out = module.attention(
        query, key, value, ids[:, :64], implementation="xla", dropout_rate=0.5, dropout_key=jax.random.key(0)
    )
    # Rows of probabilities that summed to 1 now sum to 2 x the share kept: all of a head's outputs alike,
    # their mean 1.
    assert float(jnp.ptp(out, axis=-1).max()) < 1e-5
    assert 0.8 < float(out.mean()) < 1.2 and float(out.std()) > 0.05
    with pytest.raises(UserError, match=r"splash has no dropout .*; use attention=auto, or xla"):
        module.attention(
            query,
            key,
            value,
            ids[:, :64],
            implementation="splash",
            dropout_rate=0.1,
            dropout_key=jax.random.key(0),
        )
    with pytest.raises(UserError, match="multiple of 128"):
        module.attention(query, key, value, ids[:, :64], implementation="splash")
