"""One update by an optimizer, of an objective whose parameters are ones."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.checkpoint.leaves import flatten
from bert_jax.models.config import EncoderConfig
from bert_jax.objectives.base import Objective
from bert_jax.parallel.sharding import unbox
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers


class Stacked(Objective):
    """Parameters with the names of a model of four layers, all of them ones."""

    config = EncoderConfig(num_hidden_layers=4)

    def init(self, key):
        layer = {"query": {"kernel": ones(4, 3, 2, axis=0), "bias": ones(4, 2, axis=0)}}
        encoder = {
            "embeddings": {"word_embeddings": ones(5, 3)},
            "layers": {"stack": {"layer": layer}},
        }
        return {"encoder": encoder, "classifier": {"kernel": ones(3, 2), "bias": ones(2)}}


def ones(*shape, axis=None):
    """A boxed parameter, which may be stacked over layers along an axis."""
    names = tuple("layers" if each == axis else None for each in range(len(shape)))
    return nn.LogicallyPartitioned(jnp.ones(shape), names=names)


def one_update(objective=None, **changes):
    objective = objective or Stacked()
    params = unbox(objective.init(jax.random.key(0)))
    tx, _ = optimizers.make_optimizer(OptimizerConfig(warmup_steps=0, **changes), 10, objective)
    grads = jax.tree.map(lambda p: 0.01 * jnp.ones_like(p), params)
    return flatten(jax.jit(tx.update)(grads, tx.init(params), params)[0])
