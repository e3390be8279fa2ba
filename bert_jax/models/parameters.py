"""Shapes, counts and layers of a model's parameters, from `jax.eval_shape` of its initialization."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig
from bert_jax.models.layer_slices import LayerSlice, layer_slices

LAYERS = "layers"  # logical name of the axis along which layers are stacked


def abstract(model: nn.Module, inputs: int = 4, **options: Any) -> Any:
    """Returns the boxed parameters of a model as shapes and dtypes, without computing anything.

    Args:
        model: a model of `bert_jax.models`.
        inputs: number of int32 [B, L] arrays that it takes.
        options: further arguments of its call.
    """
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return jax.eval_shape(functools.partial(model.init, **options), abstract_key(), *[ids] * inputs)["params"]


def abstract_key() -> jax.ShapeDtypeStruct:
    """Returns the shape and the dtype of a PRNG key, for `jax.eval_shape`; a key would be transferred."""
    return jax.eval_shape(jax.random.key, 0)


def parameter_shapes(boxed: Any) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of boxed or unboxed parameters, with names like `encoder/embeddings/...`."""
    return {name: tuple(_unboxed(leaf).shape) for name, leaf in _named(boxed).items()}


def count(boxed: Any) -> int:
    """Returns the total number of scalars in the parameters."""
    return sum(math.prod(shape) for shape in parameter_shapes(boxed).values())


def layer_axes(boxed: Any) -> dict[str, int]:
    """Returns {name: axis} of the parameters that have one value for each layer of a slice.

    The axis is read from the logical axis names, so a parameter that layers share, or one whose first axis
    has another meaning, is never mistaken for a stack of layers.

    Args:
        boxed: parameters in Flax boxes, such as `jax.eval_shape` of an objective's `init`.
    """
    axes = {}
    for name, leaf in _named(boxed).items():
        names = leaf.names if is_box(leaf) else ()
        if LAYERS in names:
            axes[name] = names.index(LAYERS)
    return axes


def parameter_slices(boxed: Any, config: EncoderConfig) -> dict[str, LayerSlice]:
    """Returns {name: its layers, with axis and template} of the parameters of layers; others are missing.

    Args:
        boxed: boxed parameters, as for `layer_axes`, of a model whose encoder is under `encoder/`, or of an
            encoder.
        config: configuration of the encoder.
    """
    axes, result = layer_axes(boxed), {}
    for name in _named(boxed):
        for each in layer_slices(config):
            before, matched, after = f"/{name}".partition(f"/{LAYERS}/{each.path}/")
            if matched:
                template = f"{before}/{LAYERS}/{{}}/{after}".removeprefix("/")
                result[name] = dataclasses.replace(each, axis=axes.get(name, 0), template=template)
    return result


def name_of(path: Any) -> str:
    """Returns the name of the leaf at a `jax.tree_util` path, such as `encoder/pooler/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_box(x: Any) -> bool:
    """Returns whether x is a Flax box, of a parameter and its logical axis names."""
    return isinstance(x, nn.Partitioned)


def _named(tree: Any) -> Mapping[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]
    return {name_of(path): leaf for path, leaf in leaves}


def _unboxed(leaf: Any) -> Any:
    return leaf.unbox() if is_box(leaf) else leaf
