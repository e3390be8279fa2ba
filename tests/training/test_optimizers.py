"""Optimizers of optax, and Muon; test_optimizers_float64.py checks the formulas of the others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.updates import Stacked, ones

from bert_jax.checkpoint.leaves import flatten
from bert_jax.parallel.sharding import unbox
from bert_jax.settings.run_config import OptimizerConfig
from bert_jax.training import optimizers


@pytest.mark.parametrize(
    "name, args, theirs",
    [
        ("lion", "b1=0.95", lambda mask: optax.lion(0.2, b1=0.95, weight_decay=0.01, mask=mask)),
        ("sgd", "momentum=0.9, nesterov=True", lambda mask: optax.sgd(0.2, 0.9, True)),
        ("nadamw", "", lambda mask: optax.nadamw(0.2, weight_decay=0.01, mask=mask)),
    ],
)
def test_an_optimizer_of_optax_is_optaxs(name, args, theirs):
    """Optax optimizers use the configured decay and learning rate, which the train step multiplies by."""
    weight_decay = 0.0 if name == "sgd" else 0.01
    objective, fields = Stacked(), {"clip_norm": 0.0, "weight_decay": weight_decay, "warmup_steps": 0}
    tx, _ = optimizers.make_optimizer(OptimizerConfig(name=name, args=args, **fields), 10, objective)
    layers = optimizers.Layers.from_objective(objective)
    reference = theirs(lambda params: optimizers.decay_mask(params, layers))
    params = unbox(objective.init(jax.random.key(0)))
    state, other = tx.init(params), reference.init(params)
    for number in range(3):
        grads = jax.tree.map(
            lambda p, number=number: jnp.cos(jnp.arange(p.size, dtype=p.dtype).reshape(p.shape) + number),
            params,
        )
        updates, state = jax.jit(tx.update)(grads, state, params)
        expected, other = jax.jit(reference.update)(grads, other, params)
        jax.tree.map(
            lambda u, e: np.testing.assert_allclose(-0.2 * u, e, rtol=2e-6, atol=1e-7), updates, expected
        )
        params = optax.apply_updates(params, expected)


@pytest.mark.long
def test_muon_orthogonalizes_the_matrices_of_each_layer():
    """The singular values of each layer's update, a matrix of H rows and N x D columns, are near 1. The other
    updates are Adam's, with a different rate set by a regular expression."""

    class WithOutput(Stacked):
        def init(self, key):
            params = super().init(key)
            params["encoder"]["layers"]["stack"]["layer"]["attention_output"] = {
                "kernel": ones(4, 2, 3, 5, axis=0)
            }
            return params

    params = unbox(WithOutput().init(jax.random.key(0)))
    fields = {"clip_norm": 0.0, "weight_decay": 0.0, "rates": ".*layers/.*/kernel=1; .*=0.1"}
    config = OptimizerConfig(name="muon", warmup_steps=0, **fields)
    tx, _ = optimizers.make_optimizer(config, 10, WithOutput())
    draw = np.random.default_rng(0).normal
    grads = jax.tree.map(lambda p: jnp.asarray(draw(size=p.shape), jnp.float32), params)
    updates = flatten(tx.update(grads, tx.init(params), params)[0])
    for name, shape in (("query/kernel", (4, 3, 2)), ("attention_output/kernel", (4, 6, 5))):
        matrices = np.reshape(updates[f"encoder/layers/stack/layer/{name}"], shape)
        values = np.linalg.svd(matrices, compute_uv=False)
        assert np.all((values > 0.6) & (values < 1.9)), values
    # All updates in the first step of Adam with Nesterov momentum have equal size.
    size = 0.1 * (1 + 0.9 * 0.1 / (1 - 0.9**2))
    np.testing.assert_allclose(np.abs(updates["classifier/kernel"]), size, rtol=1e-4)
