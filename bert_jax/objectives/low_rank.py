"""Low-rank adaptation (LoRA, Hu et al. 2021): frozen kernels with trained updates of a low rank."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.models.parameters import LAYERS, is_box
from bert_jax.objectives.adapters import PARAMS, PartlyFrozen, low_rank_name, low_rank_updates
from bert_jax.objectives.base import Params

_TWO_INPUTS = "heads"  # the first input axis of the kernels with two, ("heads", "kv")


def _kaiming(key: jax.Array, shape: tuple[int, ...], inputs: int, rank: int) -> jax.Array:
    bound = 1 / math.sqrt(inputs)
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def _gaussian(key: jax.Array, shape: tuple[int, ...], inputs: int, rank: int) -> jax.Array:
    return jax.random.normal(key, shape, jnp.float32) / rank


# Initializers of A: PEFT's `init_lora_weights` True (Kaiming uniform with a = sqrt 5) and "gaussian".
INITIALIZERS: dict[str, Callable[..., jax.Array]] = {"kaiming": _kaiming, "gaussian": _gaussian}


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank(PartlyFrozen):
    """Trains W + scale * A B in place of some frozen kernels W, and the parameters that are not frozen.

    Layers that are stacked have an A and a B each; layers that share W share A and B. B is 0 at first, so
    that training starts with the function of the frozen model.

    Attributes:
        is_target: whether the parameter of a name, such as `encoder/layers/stack/layer/query/kernel`, is a
            kernel with an update. It has to be frozen.
        rank: the rank of A B.
        scale: alpha / rank, or alpha / sqrt(rank) (Kalajdzievski 2023).
        initializer: a key of `INITIALIZERS`.
    """

    is_target: Callable[[str], bool]
    rank: int
    scale: float
    initializer: str = "kaiming"

    @functools.cached_property
    def targets(self) -> dict[str, Any]:
        """Returns {name: boxed shape} of the kernels with an update."""
        shapes = flatten_dict(self.objective.init_model_shapes, sep="/")
        return {name: shapes[name] for name in sorted(shapes) if self.is_target(name)}

    def has_gradient(self, name: str) -> bool:
        """Returns whether the gradient of a parameter is computed, as for A and B that of their product."""
        return self.is_target(name) or super().has_gradient(name)

    def init(self, key: jax.Array) -> Params:
        """Returns new trained parameters, with A at random and B 0."""
        trained = flatten_dict(super().init(key), sep="/")
        own = jax.random.fold_in(key, 1)  # the model's parameters are drawn from `key` itself
        for number, (name, box) in enumerate(self.targets.items()):
            shared, inputs, outputs = _parts(box.names)
            sizes = dict(zip(box.names, box.value.shape, strict=True))
            lead, fan_in, fan_out = (
                tuple(sizes[axis] for axis in axes) for axes in (shared, inputs, outputs)
            )
            a = INITIALIZERS[self.initializer](
                jax.random.fold_in(own, number), (*lead, *fan_in, self.rank), math.prod(fan_in), self.rank
            )
            b = jnp.zeros((*lead, self.rank, *fan_out), jnp.float32)
            trained[low_rank_name(name, "a")] = nn.LogicallyPartitioned(a, (*shared, *inputs, None))
            trained[low_rank_name(name, "b")] = nn.LogicallyPartitioned(b, (*shared, None, *outputs))
        return unflatten_dict(trained, sep="/")

    def frozen(self) -> Params:
        """Returns the shapes of the frozen parameters and of the scales."""
        scale = nn.LogicallyPartitioned(jax.ShapeDtypeStruct((), jnp.float32), ())
        return self._with_scales(super().frozen(), lambda: scale)

    def split(self, params: Params) -> tuple[Params, Params]:
        """Returns the trained and the frozen ones of the given parameters, and the scales with the latter.

        The given ones are those of the model, and may also be A and B.
        """
        given = flatten_dict(params, sep="/")
        factors = {name: given.pop(name) for name in list(given) if low_rank_updates([name])}
        trained, frozen = super().split(unflatten_dict(given, sep="/"))
        trained = unflatten_dict(flatten_dict(trained, sep="/") | factors, sep="/")
        boxed = any(map(is_box, jax.tree.leaves(params, is_leaf=is_box)))

        def scale() -> Any:
            value = np.array(self.scale, np.float32)
            return nn.LogicallyPartitioned(value, ()) if boxed else value

        return trained, self._with_scales(frozen, scale)

    def _with_scales(self, frozen: Params, scale: Callable[[], Any]) -> Params:
        names = flatten_dict(frozen[PARAMS], sep="/")
        # Each target has an array of its own: the train step donates its state, and no buffer twice.
        names |= {low_rank_name(name, "scale"): scale() for name in self.targets}
        return {**frozen, PARAMS: unflatten_dict(names, sep="/")}


def _parts(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the logical axis names of a kernel's stack, of its inputs and of its outputs."""
    shared = 1 if names[0] == LAYERS else 0
    first = shared + (2 if names[shared] == _TWO_INPUTS else 1)
    return names[:shared], names[shared:first], names[first:]
