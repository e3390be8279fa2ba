"""Wraps an objective so that only some of its parameters are trained and the others are frozen.

Trained and frozen parameters are stored in two trees, under the same names as in the model. If only some
layers of a stacked parameter are frozen, the parameter is split into parts. The name of a part ends with the
stacked axis and its indices, such as `encoder/layers/stack/layer/query/kernel/axis0_6-11`. The low-rank
update of a kernel (LoRA) is stored next to the kernel, as `query/kernel_lora_a`, `query/kernel_lora_b` and
`query/kernel_lora_scale`. `word_embeddings_difference` is a table that is stored as its difference from the
generator's table. `assemble` rebuilds the model's parameters from these names alone, so a checkpoint can be
read without the objective that it was trained with.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import LAYERS, LayerSlice, is_box, parameter_shapes, parameter_slices
from bert_jax.objectives.base import Batch, Objective, Pairs, Params, Rngs, encoder_config

PARAMS = "params"  # the name of the model's frozen parameters in the tree that `PartlyFrozen.frozen` returns
INNER = "objective"  # the name of the frozen parameters of the wrapped objective in that tree
_PART = re.compile(r"(?P<name>.+)/axis(?P<axis>\d+)_(?P<indices>[\d,-]+)")
_TWO_INPUTS = "heads"  # the first input axis of kernels with two input axes, ("heads", "kv")
GENERATOR = "generator"  # the group of parameters that only the generator of `replaced_tokens` has
# The suffix of the name of a table that is stored as its difference from the generator's table.
DIFFERENCE = "_difference"
_LOW_RANK = re.compile(r"(?P<name>.+)_lora_(?P<factor>a|b|scale)")


@dataclasses.dataclass(frozen=True, eq=False)
class PartlyFrozen(Objective):
    """Trains the parameters of an objective that are not frozen.

    `is_frozen` decides by the name of a parameter. A parameter that is stacked over layers has one name per
    layer, such as `encoder/layers/11/query/kernel`.
    """

    objective: Objective
    is_frozen: Callable[[str], bool]

    @property
    def scales(self) -> Mapping[str, float]:
        return self.objective.scales

    @property
    def config(self) -> EncoderConfig | None:
        return encoder_config(self.objective)

    @property
    def encoders(self) -> Mapping[str, EncoderConfig]:
        return self.objective.encoders

    @functools.cached_property
    def _layers(self) -> Mapping[str, LayerSlice]:
        return stacked_parameters(self.objective.init_shapes, self.encoders)

    @functools.cached_property
    def flags(self) -> dict[str, dict[str, bool]]:
        """Returns {name: {name in a layer: whether it is frozen}} for the wrapped objective's parameters."""
        shapes = parameter_shapes(self.objective.init_shapes)
        names = {name: self._layers[name].names if name in self._layers else (name,) for name in shapes}
        return {name: {each: self.is_frozen(each) for each in names[name]} for name in shapes}

    def has_gradient(self, name: str) -> bool:
        """Returns whether the gradient of the parameter with this name, in one layer, is computed."""
        return not self.is_frozen(name)

    def init(self, key: jax.Array) -> Params:
        """Returns new values of the trained parameters of the wrapped objective."""
        return self._divide(self.objective.init(key))[0]

    def frozen(self) -> Params:
        """Returns the shapes of the frozen parameters, and the result of the wrapped objective's `frozen`."""
        shapes = jax.eval_shape(lambda params: self._divide(params)[1], self.objective.init_shapes)
        return self._nested(shapes, self.objective.frozen())

    def init_model(self, key: jax.Array) -> Params:
        return self.objective.init_model(key)

    @functools.cached_property
    def init_model_shapes(self) -> Params:
        return self.objective.init_model_shapes

    def split(self, params: Params) -> tuple[Params, Params]:
        params, inner = self.objective.split(params)
        trained, frozen = self._divide(params)
        return trained, self._nested(frozen, inner)

    def _nested(self, frozen: Params, inner: Params | None) -> Params:
        return {PARAMS: frozen} if inner is None else {PARAMS: frozen, INNER: inner}

    def _divide(self, params: Params) -> tuple[Params, Params]:
        trained: dict[str, Any] = {}
        frozen: dict[str, Any] = {}
        for name, value in flatten_dict(params, sep="/").items():
            flags = list(self.flags[name].values())
            if all(flags) or not any(flags):
                (frozen if flags[0] else trained)[name] = value
                continue
            axis = self._layers[name].axis
            for part, wanted in ((trained, False), (frozen, True)):
                indices = [index for index, flag in enumerate(flags) if flag is wanted]
                part[part_name(name, axis, indices)] = jax.tree.map(
                    functools.partial(_take, axis=axis, indices=indices), value
                )
        return unflatten_dict(trained, sep="/"), unflatten_dict(frozen, sep="/")

    def join(self, params: Params, frozen: Params) -> Params:
        parts = flatten_dict(params, sep="/") | flatten_dict(frozen[PARAMS], sep="/")
        return self.objective.join(unflatten_dict(assemble(parts), sep="/"), frozen.get(INNER))

    def prepare(self, batch: Batch, key: jax.Array, train: bool) -> Batch:
        return self.objective.prepare(batch, key, train)

    def weights(self, batch: Batch) -> dict[str, jax.Array]:
        return self.objective.weights(batch)

    def loss(self, params: Params, batch: Batch, rngs: Rngs | None) -> tuple[Pairs, Pairs]:
        return self.objective.loss(params, batch, rngs)

    @property
    def compares_rows(self) -> bool:  # type: ignore[override]
        return self.objective.compares_rows

    def row_outputs(self, params: Params, batch: Batch, rngs: Rngs | None) -> Any:
        return self.objective.row_outputs(params, batch, rngs)

    def compare(self, params: Params, outputs: Any, batch: Batch) -> tuple[Pairs, Pairs]:
        return self.objective.compare(params, outputs, batch)

    def predict(self, params: Params, batch: Batch) -> jax.Array:
        return self.objective.predict(params, batch)


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank(PartlyFrozen):
    """Replaces some frozen kernels W by W + scale * A B, and trains A, B and all parameters not frozen.

    Each stacked layer has its own A and B; layers that share W also share A and B. B is initialized to 0, so
    training starts from the function of the frozen model. `is_target` tells by its name, such as
    `encoder/layers/stack/layer/query/kernel`, whether a frozen parameter is a kernel with an update. `rank`
    is the rank of A B, and `scale` is alpha / rank.
    """

    is_target: Callable[[str], bool]
    rank: int
    scale: float

    @functools.cached_property
    def targets(self) -> dict[str, Any]:
        """Returns {name: boxed shape} for the kernels with an update."""
        shapes = flatten_dict(self.objective.init_model_shapes, sep="/")
        return {name: shapes[name] for name in sorted(shapes) if self.is_target(name)}

    def has_gradient(self, name: str) -> bool:
        """Returns whether a gradient is computed; A and B need the gradient of their kernel."""
        return self.is_target(name) or super().has_gradient(name)

    def init(self, key: jax.Array) -> Params:
        """Returns new trained parameters, with random A and zero B."""
        trained = flatten_dict(super().init(key), sep="/")
        own = jax.random.fold_in(key, 1)  # `key` itself initializes the model's parameters
        for number, (name, box) in enumerate(self.targets.items()):
            shared, inputs, outputs = _axes(box.names)
            sizes = dict(zip(box.names, box.value.shape, strict=True))
            lead, fan_in, fan_out = (
                tuple(sizes[axis] for axis in axes) for axes in (shared, inputs, outputs)
            )
            # PEFT's default, Kaiming uniform with a = sqrt 5.
            bound = 1 / math.sqrt(math.prod(fan_in))
            shape, of_a = (*lead, *fan_in, self.rank), jax.random.fold_in(own, number)
            a = jax.random.uniform(of_a, shape, jnp.float32, -bound, bound)
            b = jnp.zeros((*lead, self.rank, *fan_out), jnp.float32)
            trained[low_rank_name(name, "a")] = nn.LogicallyPartitioned(a, (*shared, *inputs, None))
            trained[low_rank_name(name, "b")] = nn.LogicallyPartitioned(b, (*shared, None, *outputs))
        return unflatten_dict(trained, sep="/")

    def frozen(self) -> Params:
        scale = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((), jnp.float32), ())
        return self._with_scales(super().frozen(), lambda: scale)

    def split(self, params: Params) -> tuple[Params, Params]:
        trained, frozen = super().split(params)
        boxed = any(map(is_box, jax.tree.leaves(params, is_leaf=is_box)))

        def scale() -> Any:
            value = np.array(self.scale, np.float32)
            return nn.LogicallyPartitioned(value, ()) if boxed else value

        return trained, self._with_scales(frozen, scale)

    def _with_scales(self, frozen: Params, scale: Callable[[], Any]) -> Params:
        names = flatten_dict(frozen[PARAMS], sep="/")
        # One array per target: the train step donates its state, and a buffer can be donated only once.
        names |= {low_rank_name(name, "scale"): scale() for name in self.targets}
        return {**frozen, PARAMS: unflatten_dict(names, sep="/")}


def _axes(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the logical axis names of a kernel's stack, inputs and outputs."""
    shared = 1 if names[0] == LAYERS else 0
    first = shared + (2 if names[shared] == _TWO_INPUTS else 1)
    return names[:shared], names[shared:first], names[first:]


def recomputes(objective: Objective) -> bool:
    """Returns whether an objective's encoder recomputes activations to save memory (rematerialization)."""
    config = encoder_config(objective)
    return config is not None and config.remat != "none"


def stacked_parameters(boxed: Params, encoders: Mapping[str, EncoderConfig]) -> dict[str, LayerSlice]:
    """Returns {name: layers} for boxed parameters that are stacked over layers, or for parts of them."""
    found: dict[str, LayerSlice] = {}
    stacked = {}
    for prefix, config in encoders.items():
        slices = parameter_slices(boxed, config)
        found |= {name: layers for name, layers in slices.items() if name.startswith(prefix)}
    for name, layers in found.items():
        if not layers.shared:
            numbers, template = layers.numbers, layers.template
            if part := _PART.fullmatch(name):
                numbers = tuple(numbers[index] for index in _parse_indices(part["indices"]))
                template = template.removesuffix(name.removeprefix(part["name"]))
            stacked[name] = dataclasses.replace(layers, numbers=numbers, template=template)
    return stacked


def part_name(name: str, axis: int, indices: Sequence[int]) -> str:
    """Returns the name of the part of a parameter with these ascending indices of an axis."""
    stretches: list[list[int]] = []
    for index in indices:
        if stretches and stretches[-1][1] == index - 1:
            stretches[-1][1] = index
        else:
            stretches.append([index, index])
    texts = (str(first) if first == last else f"{first}-{last}" for first, last in stretches)
    return f"{name}/axis{axis}_{','.join(texts)}"


def _parse_indices(text: str) -> list[int]:
    stretches = (stretch.partition("-") for stretch in text.split(","))
    return [index for first, _, last in stretches for index in range(int(first), int(last or first) + 1)]


def low_rank_name(name: str, factor: str) -> str:
    """Returns the name of "a", "b" or "scale" of a parameter's low-rank update."""
    return f"{name}_lora_{factor}"


def low_rank_updates(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Returns {model parameter: {"a", "b" or "scale": its name}} for the low-rank updates."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        if part := _LOW_RANK.fullmatch(name):
            found.setdefault(part["name"], {})[part["factor"]] = name
    return found


def group_parts(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns {model parameter: names of its stored parts}."""
    groups: dict[str, list[str]] = {}
    for name in names:
        part = _PART.fullmatch(name) or _LOW_RANK.fullmatch(name)
        groups.setdefault(part["name"] if part else name, []).append(name)
    return groups


def assemble(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the model's parameters by name, assembled from stored NumPy or JAX arrays and their parts."""
    result = {}
    for name, parts in group_parts(stored).items():
        factors = low_rank_updates(parts).get(name, {})
        whole = _concatenated([(part, stored[part]) for part in parts if part not in factors.values()])
        if factors:
            whole = add_low_rank(whole, **{factor: stored[part] for factor, part in factors.items()})
        result[name] = whole
    for name in [name for name in result if name.endswith(DIFFERENCE)]:
        table = name.removesuffix(DIFFERENCE)
        of_generator = result[f"{GENERATOR}/{table}"]
        if isinstance(of_generator, jax.Array):  # no gradient of the sum reaches the generator
            of_generator = jax.lax.stop_gradient(of_generator)
        result[table] = of_generator + result.pop(name)
    return result


def add_low_rank(kernel: Any, a: Any, b: Any, scale: Any) -> Any:
    """Returns kernel + scale * a b in float32 (Hu et al. 2022, section 4.1), in NumPy or JAX.

    Args:
        kernel: [..., *inputs, *outputs]; the leading axes are common to all three arrays, such as the layers
            of a stack.
        a: [..., *inputs, rank].
        b: [..., rank, *outputs].
        scale: the factor of the product, [].
    """
    common = a.ndim + b.ndim - kernel.ndim - 2
    if isinstance(kernel, np.ndarray):
        shape = a.shape[:common]
        product = a.reshape(*shape, -1, a.shape[-1]) @ b.reshape(*shape, a.shape[-1], -1)
        return kernel + np.float32(scale) * product.reshape(kernel.shape)
    shared = tuple(range(common))
    product = jax.lax.dot_general(
        a,
        b,
        (((a.ndim - 1,), (common,)), (shared, shared)),
        precision=jax.lax.Precision.HIGHEST,  # TPUs would round the factors to bfloat16
    )
    return kernel + scale * product


def _concatenated(parts: list[tuple[str, Any]]) -> Any:
    found = [(part, array) for name, array in parts if (part := _PART.fullmatch(name))]
    if not found:
        return parts[0][1]
    axis = int(found[0][0]["axis"])
    placed = sorted(((_parse_indices(part["indices"]), array) for part, array in found), key=lambda x: x[0])
    arrays = [array for _, array in placed]
    whole = (np if isinstance(arrays[0], np.ndarray) else jnp).concatenate(arrays, axis)
    return _take(whole, axis, np.argsort([index for each, _ in placed for index in each]).tolist())


def _take(array: Any, axis: int, indices: list[int]) -> Any:
    """Returns the given indices of an axis, as a slice if they are consecutive."""
    stretches = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
    if len(stretches) == 1:
        if len(indices) == array.shape[axis]:
            return array
        return array[(slice(None),) * axis + (slice(indices[0], indices[-1] + 1),)]
    return array.take(np.array(indices), axis)
