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

from bert_jax.models import runs
from bert_jax.models.config import EncoderConfig

LAYERS = "layers"  # logical name of the axis along which the layers of a run are stacked


@dataclasses.dataclass(frozen=True)
class LayerNumbers:
    """The layers of the encoder that a parameter belongs to.

    Attributes:
        axis: the parameter's axis along which it has one value for each of `numbers`; None if all of these
            layers share the whole parameter.
        numbers: indices of the layers, counted from 0.
        template: the parameter's name in one layer, with `{}` in place of the index.
    """

    axis: int | None
    numbers: tuple[int, ...]
    template: str

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the parameter's name in each layer, such as `encoder/layers/11/query/kernel`."""
        return tuple(self.template.format(number) for number in self.numbers)


@dataclasses.dataclass(frozen=True)
class StackedLayers(LayerNumbers):
    """The layers of a parameter that has one value for each of them."""

    axis: int


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
    """Returns {name: axis} of the parameters that have one value for each layer of a run.

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


def layer_numbers(boxed: Any, config: EncoderConfig) -> dict[str, LayerNumbers]:
    """Returns {name: `LayerNumbers`} of the parameters that belong to layers; other names are missing.

    Args:
        boxed: boxed parameters, as for `layer_axes`, of a model whose encoder is under `encoder/`, or of an
            encoder.
        config: configuration of the encoder.
    """
    axes = layer_axes(boxed)
    places, found = runs.places(config), {}
    for name in _named(boxed):
        for place in places:
            before, matched, after = f"/{name}".partition(f"/{LAYERS}/{place.path}/")
            if matched:
                template = f"{before}/{LAYERS}/{{}}/{after}".removeprefix("/")
                found[name] = LayerNumbers(axes.get(name), place.numbers, template)
    return found


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
