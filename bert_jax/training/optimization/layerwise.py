"""Optimizers of optax that compute norms of parameters, on parameters that are stacked over layers."""

from __future__ import annotations

import jax
import optax

from bert_jax.models.parameters import StackedLayers
from bert_jax.training.optimization.param_groups import Layers


def by_layer(optimizer: optax.GradientTransformation, layers: Layers) -> optax.GradientTransformation:
    """Returns an optimizer that treats each layer of a stacked parameter as a parameter of its own.

    The state of a stacked parameter has the layers on its first axis, that of a count among them.

    Args:
        optimizer: treats every array as one parameter, without regard to the others.
        layers: the layers of stacked parameters.
    """
    optimizers = {_group(stacked): _mapped(optimizer, stacked.axis) for stacked in layers.stacked.values()}

    def groups(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: _group(layers.at(path)), params)

    return optax.partition({_group(None): optimizer} | optimizers, groups)


def _group(stacked: StackedLayers | None) -> str:
    return "whole" if stacked is None else f"axis_{stacked.axis}_of_{len(stacked.names)}_layers"


def _mapped(optimizer: optax.GradientTransformation, axis: int) -> optax.GradientTransformation:
    def init(params):
        # Optax finds the moments in a state by a tree without arrays, which vmap does not take.
        return jax.vmap(optimizer.init, axis)(params) if jax.tree.leaves(params) else optimizer.init(params)

    def update(updates, state, params=None):
        return jax.vmap(optimizer.update, (axis, 0, axis), (axis, 0))(updates, state, params)

    return optax.GradientTransformation(init, update)
