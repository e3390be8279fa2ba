"""The state of a run: what a train step changes, as shapes with shardings and as arrays on the mesh."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.objectives.base import Objective, Params
from bert_jax.parallel.sharding import parameter_shardings, unbox

_NO_DIMENSION = object()


class TrainState(flax.struct.PyTreeNode):
    """Everything a step changes. Data order, masks and dropout follow from `step` and the run's seed."""

    step: jax.Array  # int32 []
    params: Params  # float32
    opt_state: Any
    recent: jax.Array | None = None  # float32 [window], of a SpikeRule: the last accepted steps, newest last


def abstract_state(
    task: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, window: int = 0
) -> TrainState:
    """The whole state as ShapeDtypeStructs that carry shardings; `window` is that of a `SpikeRule`.

    A moment is split as its parameter is, along the dimensions that it has of it: all of them in Adam, rows
    or columns in Adafactor. What matches no dimensions of the parameter is replicated.
    """
    boxed = jax.eval_shape(task.init, jax.random.key(0))
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(shape, sharding):
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = jax.tree.map(place, unbox(boxed), parameter_shardings(boxed, mesh))

    def is_frozen(moment):
        return isinstance(moment, optax.MaskedNode)

    opt_state = optax.tree_map_params(
        optimizer,
        lambda moment, param: (
            moment if is_frozen(moment) else place(moment, _sharding_of_moment(moment.shape, param))
        ),
        jax.eval_shape(optimizer.init, params),
        params,
        transform_non_params=lambda leaf: place(leaf, replicated),
        is_leaf=is_frozen,
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    recent = jax.ShapeDtypeStruct((window,), jnp.float32, sharding=replicated) if window else None
    return TrainState(step, params, opt_state, recent)


def _sharding_of_moment(shape: tuple[int, ...], param: jax.ShapeDtypeStruct) -> NamedSharding:
    """The parameter's sharding along the dimensions of `shape`, which has all or some of the parameter's."""
    spec: list[Any] = []
    remaining = iter(zip(param.shape, param.sharding.spec, strict=True))
    for size in shape:
        found = next((axes for of_param, axes in remaining if of_param == size), _NO_DIMENSION)
        if found is _NO_DIMENSION:
            return NamedSharding(param.sharding.mesh, PartitionSpec())
        spec.append(found)
    return NamedSharding(param.sharding.mesh, PartitionSpec(*spec))


def state_shardings(
    task: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, window: int = 0
) -> TrainState:
    """NamedShardings of the whole state."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(task, optimizer, mesh, window))


def init_state(
    task: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, window: int = 0
) -> TrainState:
    """A fresh state, made on the devices that hold it: no device ever holds the whole of a sharded one."""

    def init(seed):
        params = unbox(task.init(jax.random.key(seed, impl="threefry2x32")))
        recent = jnp.full(window, jnp.nan, jnp.float32) if window else None
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), recent)

    return jax.jit(init, out_shardings=state_shardings(task, optimizer, mesh, window))(np.uint32(seed))
