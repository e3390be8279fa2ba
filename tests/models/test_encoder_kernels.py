import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import Encoder, PretrainingModel
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel import sharding

MODERN = dict(
    position="rotary", norm_placement="pre", final_norm=True, feed_forward="glu", norm="rmsnorm",
    norm_bias=False, first_attention_norm=False, initializer_range=0.2,
)  # fmt: skip


@functools.cache
def gradient_without_kernels(is_modern):
    """The gradient as a function of parameters and kernels, the parameters, and its value without kernels."""
    config = EncoderConfig(
        vocab_size=50, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=128, attention_probs_dropout_prob=0.2, **(MODERN if is_modern else {}),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (8, 128)).astype(np.int32)
    zeros, ones = np.zeros_like(ids), np.ones_like(ids)
    positions = np.broadcast_to(np.arange(128, dtype=np.int32), ids.shape)
    few = zeros[:, :2]
    init = jax.jit(PretrainingModel(config).init)
    params = init(jax.random.key(0), ids, zeros, positions, ones, few, few)
    params = sharding.unbox(params["params"])

    def loss(params, kernels):
        logits, _ = PretrainingModel(config.replace(attention=kernels)).apply(
            {"params": params}, ids, zeros, positions, ids // 25, few, few,
            deterministic=False, rngs={"dropout": jax.random.key(3)},
        )  # fmt: skip
        return jnp.mean(jnp.square(logits))

    return jax.grad(loss), params, jax.jit(jax.grad(loss), static_argnums=1)(params, "xla")


@pytest.mark.long
@pytest.mark.parametrize("is_modern", [False, True])
def test_with_the_kernels_of_tpus_a_model_has_the_same_gradients_on_a_mesh(is_modern):
    gradient, params, expected = gradient_without_kernels(is_modern)
    mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
    with sharding.on_mesh(mesh):
        found = jax.jit(gradient, static_argnums=1)(params, "pallas")
    # The gradient of a key's bias is 0 but for rounding: only one bound for all of them has a meaning.
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * largest), found, expected
    )
    layers = expected["encoder"]["layers"]
    one = next(iter(layers.values()))["layer"]["output_norm"]["scale"]
    assert jnp.abs(one).max() > 1e-3 * largest


@pytest.mark.long
def test_rotated_queries_and_keys_in_the_kernel_of_tpus():
    """The kernel rotates them after it has added their biases."""
    config = EncoderConfig(
        vocab_size=50, hidden_size=128, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128, attention_probs_dropout_prob=0.0, position="rotary",
        initializer_range=0.3,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (1, 128)).astype(np.int32)
    positions = np.int32([[*range(50), *range(78)]])
    sequences = np.int32([[1] * 50 + [2] * 70 + [0] * 8])
    inputs = (ids, np.zeros_like(ids), positions, sequences)
    params = sharding.unbox(jax.jit(Encoder(config).init)(jax.random.key(0), *inputs)["params"])
    bias = params["layers"]["stack"]["layer"]["query"]["bias"]
    params["layers"]["stack"]["layer"]["query"]["bias"] = jnp.asarray(
        rng.normal(size=bias.shape), jnp.float32
    )
    xla, pallas = (
        jax.jit(Encoder(config.replace(attention=name)).apply)({"params": params}, *inputs)
        for name in ("xla", "pallas")
    )
    real = sequences > 0
    np.testing.assert_allclose(pallas[real], xla[real], atol=2e-5)
    moved = jax.jit(Encoder(config).apply)({"params": params}, ids, ids * 0, positions[:, ::-1], sequences)
    assert np.abs(moved[real] - xla[real]).max() > 0.1
