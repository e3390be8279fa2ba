import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax import sharding
from bert_jax.config import BertConfig
from bert_jax.models import BertForPreTraining, pallas_residual
from bert_jax.models.dropout import dropout
from bert_jax.models.layers import layer_norm

EPSILON = 1e-12


def inputs(rows=3, length=256, features=128, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(rows), 6)
    x, h, weights = (jax.random.normal(key, (rows, length, features), dtype) for key in keys[:3])
    bias, scale, offset = (jax.random.normal(key, (features,)) for key in keys[3:])
    return (x, h, bias, scale, offset), weights


def plain(x, h, bias, scale, offset, rate, key):
    return layer_norm(x + dropout(h + bias.astype(h.dtype), key, rate), scale, offset, EPSILON)


def fused(x, h, bias, scale, offset, rate, key):
    return pallas_residual.residual_norm(x, h, bias, scale, offset, epsilon=EPSILON, rate=rate, key=key)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_values_and_gradients_are_those_of_the_plain_formula(rate):
    given, weights = inputs()
    key = jax.random.key(7)

    def value_and_gradients(function):
        def loss(*given):
            out = function(*given, rate, key)
            return jnp.vdot(weights, out), out

        (_, out), grads = jax.value_and_grad(loss, argnums=range(5), has_aux=True)(*given)
        return out, *grads

    for mine, theirs in zip(value_and_gradients(fused), value_and_gradients(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * np.abs(theirs).max())


def test_without_a_key_nothing_is_dropped():
    given, _ = inputs(rows=1)
    np.testing.assert_array_equal(fused(*given, 0.5, None), fused(*given, 0.0, jax.random.key(0)))


def test_bfloat16_is_as_close_to_float32_as_the_plain_formula():
    given, _ = inputs()
    key = jax.random.key(1)
    exact = plain(*given, 0.1, key)
    halves = [x.astype(jnp.bfloat16) for x in given[:2]]
    errors = [
        float(jnp.abs(function(*halves, *given[2:], 0.1, key).astype(jnp.float32) - exact).max())
        for function in (fused, plain)
    ]
    assert errors[0] < 1.5 * errors[1]


def test_a_model_trains_the_same_on_a_mesh():
    config = BertConfig(
        vocab_size=50, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (8, 128)).astype(np.int32)
    zeros, ones = np.zeros_like(ids), np.ones_like(ids)
    positions = np.broadcast_to(np.arange(128, dtype=np.int32), ids.shape)
    few = zeros[:, :2]
    params = BertForPreTraining(config).init(jax.random.key(0), ids, zeros, positions, ones, few, few)
    params = sharding.unbox(params["params"])

    def loss(params, residual):
        logits, _ = BertForPreTraining(config.replace(residual=residual)).apply(
            {"params": params}, ids, zeros, positions, ones, few, few,
            deterministic=False, rngs={"dropout": jax.random.key(3)},
        )  # fmt: skip
        return jnp.mean(jnp.square(logits))

    expected = jax.jit(jax.grad(loss), static_argnums=1)(params, "xla")
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    with sharding.on_mesh(mesh):
        found = jax.jit(jax.grad(loss), static_argnums=1)(params, "pallas")
    # The gradient of a key's bias is 0 but for rounding: only one bound for all of them has a meaning.
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * largest), found, expected
    )
    one = expected["encoder"]["layers"]["stack"]["layer"]["output_norm"]["scale"]
    assert jnp.abs(one).max() > 1e-3 * largest


def test_what_there_is_a_kernel_for():
    assert pallas_residual.resolve("auto", "tpu", 512, 768) == "pallas"
    assert pallas_residual.resolve("auto", "tpu", 512, 1024) == "pallas"
    assert pallas_residual.resolve("auto", "tpu", 96, 768) == "xla"
    assert pallas_residual.resolve("auto", "tpu", 128, 312) == "xla"
    assert pallas_residual.resolve("auto", "gpu", 512, 768) == "xla"
    assert pallas_residual.resolve("xla", "tpu", 512, 768) == "xla"
