"""A model so small that only compiling it takes time."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.config import EncoderConfig


def draw_parameters(task, seed=0):
    """As `task.init`, without the seconds that it takes to compile."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name = path[-1].key
        if name in ("scale", "bias"):
            return jnp.full(leaf.shape, float(name == "scale"))
        return jnp.asarray(rng.normal(0, 0.02, leaf.shape), jnp.float32)

    shapes = jax.eval_shape(lambda: nn.unbox(task.init(jax.random.key(0))))
    return jax.tree_util.tree_map_with_path(draw, shapes)


def tiny_config(vocab_size):
    return EncoderConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
