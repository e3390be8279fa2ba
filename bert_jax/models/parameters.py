"""Parameters of a model: the location of layers' parameters, and shapes and counts by `jax.eval_shape`.

One scan computes equal layers, or a repeated pattern of layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.config import EncoderConfig

LAYERS = "layers"  # logical name of the axis along which layers are stacked


@dataclasses.dataclass(frozen=True)
class LayerSlice:
    """Equal layers, whose parameters are stacked along one axis or shared.

    `scan` is `stack`, or `stack_0`, `stack_1`, ... for several scans; `shared` instead of `stack` if the
    layers share their parameters, which then have no layer axis.
    """

    numbers: tuple[int, ...] = (0,)  # indices of the layers from 0, in the order of the parameters' axis
    scan: str = "stack"  # name of the scan that computes them
    name: str = "layer"  # in one repeat of the scan; `layer_0`, ... for several
    shared: bool = False
    group: int = 0  # index of the scan
    window: int = 0  # a token attends to the tokens at most this far to each side; 0 for all tokens
    theta: float = 10_000.0  # base of the rotary angles
    attention_norm: bool = True
    convolution: bool = False  # whether a convolution of the layer's input is added to its output
    axis: int = 0  # the layer axis of a parameter that is not shared
    template: str = "{}"  # the name of a parameter in one layer, with `{}` for the index

    @property
    def path(self) -> str:
        """Returns the name of the parameters under `layers`, such as `stack/layer`."""
        return f"{self.scan}/{self.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """Returns a parameter's name in each layer, such as `encoder/layers/11/query/kernel`."""
        return tuple(self.template.format(number) for number in self.numbers)


def layer_slices(config: EncoderConfig) -> list[LayerSlice]:
    """Returns the slices of an encoder, in the order in which their first layers are applied."""
    layers = config.num_hidden_layers
    if config.layer_groups:
        group_of = [int(i / (layers / config.layer_groups)) for i in range(layers)]
        patterns = [
            [[i for i in range(layers) if group_of[i] == group]] for group in range(config.layer_groups)
        ]
    else:
        # A first layer whose parameters differ from the others has a separate scan, and so has the last layer
        # if the mask decoder applies it again.
        start = 0 if config.first_attention_norm and not config.conv_kernel_size else 1
        is_mixed = len({config.is_local(layer) for layer in range(start, layers)}) > 1
        period = config.global_every if is_mixed else 1
        whole = start + (layers - config.mask_decoder - start) // period * period
        patterns = [
            [[i] for i in range(start)],
            [list(range(first, whole, period)) for first in range(start, min(start + period, whole))],
            [[i] for i in range(whole, layers)],
        ]
    patterns = [pattern for pattern in patterns if pattern]
    kind = "shared" if config.layer_groups else "stack"
    return [
        LayerSlice(
            numbers=tuple(numbers),
            scan=kind if len(patterns) == 1 else f"{kind}_{group}",
            name="layer" if len(pattern) == 1 else f"layer_{member}",
            shared=bool(config.layer_groups),
            group=group,
            window=config.local_window if config.is_local(numbers[0]) else 0,
            theta=config.local_rotary_theta if config.is_local(numbers[0]) else config.rotary_theta,
            attention_norm=numbers[0] > 0 or config.first_attention_norm,
            convolution=numbers[0] == 0 and config.conv_kernel_size > 0,
        )
        for group, pattern in enumerate(patterns)
        for member, numbers in enumerate(pattern)
    ]


def scans(config: EncoderConfig) -> list[tuple[LayerSlice, ...]]:
    """Returns the slices that each scan computes; a repeat applies one layer of each slice."""
    return [tuple(scan) for _, scan in itertools.groupby(layer_slices(config), key=lambda each: each.scan)]


def abstract(model: nn.Module, inputs: int = 4, **options: Any) -> Any:
    """Returns the boxed parameters of a model as shapes and dtypes, without computing anything.

    The model has `inputs` int32 [B, L] arguments; `options` are further arguments of its call.
    """
    ids = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    return jax.eval_shape(functools.partial(model.init, **options), abstract_key(), *[ids] * inputs)["params"]


def abstract_key() -> jax.ShapeDtypeStruct:
    """Returns a PRNG key's shape and dtype for `jax.eval_shape`, because a key would be transferred."""
    return jax.eval_shape(jax.random.key, 0)


def parameter_shapes(boxed: Any) -> dict[str, tuple[int, ...]]:
    """Returns {name: shape} of boxed or unboxed parameters, with names like `encoder/embeddings/...`."""
    return {name: tuple(_unboxed(leaf).shape) for name, leaf in _named(boxed).items()}


def layer_axes(boxed: Any) -> dict[str, int]:
    """Returns {name: axis} of the boxed parameters that have one value for each layer of a slice.

    The axis is read from the logical axis names, so a parameter that layers share, or one whose first axis
    has another meaning, is never mistaken for a stack of layers.
    """
    axes = {}
    for name, leaf in _named(boxed).items():
        names = leaf.names if is_box(leaf) else ()
        if LAYERS in names:
            axes[name] = names.index(LAYERS)
    return axes


def parameter_slices(boxed: Any, config: EncoderConfig) -> dict[str, LayerSlice]:
    """Returns {name: its layers, with axis and template} of the layers' parameters, without other parameters.

    `boxed` are the parameters of an encoder, or of a model whose encoder is under `encoder/`.
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
    """Returns whether x is a Flax box, which holds a parameter and its logical axis names."""
    return isinstance(x, nn.Partitioned)


def _named(tree: Any) -> Mapping[str, Any]:
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_box)[0]
    return {name_of(path): leaf for path, leaf in leaves}


def _unboxed(leaf: Any) -> Any:
    return leaf.unbox() if is_box(leaf) else leaf
