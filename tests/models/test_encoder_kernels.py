import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models import PretrainingModel
from bert_jax.models.config import EncoderConfig
from bert_jax.parallel import sharding

MODERN = dict(
    position="rotary", norm_placement="pre", final_norm=True, feed_forward="glu", norm="rmsnorm",
    norm_bias=False, first_attention_norm=False, initializer_range=0.2,
)  # fmt: skip


@functools.cache
def gradient_without_kernels(is_modern):
    """Returns the gradient as a function of (parameters, kernels), the parameters, and the plain gradient."""
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
    # The gradient of the key's bias is 0 except for rounding, so one absolute bound holds for all parameters.
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(expected))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5 * largest), found, expected
    )
    layers = expected["encoder"]["layers"]
    one = next(iter(layers.values()))["layer"]["output_norm"]["scale"]
    assert jnp.abs(one).max() > 1e-3 * largest
