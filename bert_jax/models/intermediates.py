"""Intermediate values of an encoder that a caller may request: states of its layers, inputs of attention.

Nothing is kept, and no program changes, unless `apply` requests a name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import flax.linen as nn
import jax

from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import layer_slices

EMBEDDINGS = "embedding_states"  # [B, L, H], the input of the first layer
LAYERS = "layer_states"  # [B, L, H], the output of each layer
LAST = "last_state"  # [B, L, H], the output of the encoder, after the final norm if there is one
QUERIES, KEYS, VALUES = "queries", "keys", "values"  # [B, L, N, D] of each layer, rotated by their positions

_LEAF = "given"

States = dict[str, list[jax.Array]]


def is_requested(module: nn.Module, name: str) -> bool:
    """Returns whether the caller requests the values of this name."""
    return module.is_mutable_collection(name) and not module.is_initializing()


def sow_if_requested(module: nn.Module, name: str, x: jax.Array) -> None:
    """Keeps x if the caller requests the name."""
    if is_requested(module, name):
        module.sow(name, _LEAF, x, reduce_fn=lambda _, new: new, init_fn=lambda: None)


def apply(
    model: nn.Module,
    config: EncoderConfig,
    params: Any,
    *inputs: Any,
    collect: Collection[str] = (),
    **options: Any,
) -> tuple[Any, States]:
    """Returns the output of a model, and for each name in `collect` one array, or one for each layer.

    The model is an encoder with this configuration, or has one that is called `encoder`. `inputs` and
    `options` are its arguments, and `rngs`.
    """
    if not collect:
        return model.apply({"params": params}, *inputs, **options), {}
    output, variables = model.apply({"params": params}, *inputs, mutable=list(collect), **options)
    trees = {name: variables[name] for name in collect}
    return output, {name: _in_order(tree.get("encoder", tree), config) for name, tree in trees.items()}


def _in_order(tree: Mapping[str, Any], config: EncoderConfig) -> list[jax.Array]:
    if _LEAF in tree:
        return [tree[_LEAF]]
    states: dict[int, jax.Array] = {}
    for each in layer_slices(config):
        stacked = tree["layers"][each.scan][each.name][_LEAF]
        states |= {number: stacked[repeat] for repeat, number in enumerate(each.numbers)}
    return [states[number] for number in sorted(states)]
