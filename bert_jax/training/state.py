"""The train state, as abstract shapes with shardings and as arrays on the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.checkpoint.leaves import flatten
from bert_jax.models.parameters import name_of
from bert_jax.objectives.adapters import INNER
from bert_jax.objectives.base import Objective, Params
from bert_jax.objectives.distillation import TEACHER
from bert_jax.parallel.sharding import (
    from_host,
    intended_transfer,
    on_all_devices,
    parameter_shardings,
    unbox,
)


class TrainState(flax.struct.PyTreeNode):
    """The state of a train step. Data order, masks and dropout follow from `step` and the run's seed."""

    step: jax.Array  # int32 []
    params: Params  # float32
    opt_state: Any
    frozen: Params | None = None  # the objective's frozen parameters, which are read-only and saved once
    # int32 [], the number of consecutive skipped steps up to this one
    skipped: jax.Array = flax.struct.field(default_factory=lambda: jnp.int32(0))

    @property
    def model_parameters(self) -> dict[str, Params]:
        """Returns the trained and the frozen parameters of the model, without the teacher, by field."""
        return {"params": self.params, "frozen": _without_teacher(self.frozen or {})}


def _without_teacher(frozen: Any) -> Params:
    return {
        name: _without_teacher(x) if name == INNER else x for name, x in frozen.items() if name != TEACHER
    }


def abstract_state(
    objective: Objective, optimizer: optax.GradientTransformation, mesh: Mesh, shard_optimizer: bool = False
) -> TrainState:
    """Returns the train state as ShapeDtypeStructs with shardings.

    A moment has the sharding of its parameter. `shard_optimizer` also splits moments over `data`.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    params = _abstract(objective.init_shapes, mesh)
    moments = parameter_shardings(objective.init_shapes, mesh, over_data=shard_optimizer)
    frozen = objective.frozen()

    def is_masked(moment):
        return isinstance(moment, optax.MaskedNode)

    with intended_transfer():  # optax initializes arrays to find the moments in a state
        opt_state = optax.tree_map_params(
            optimizer,
            lambda moment, param, place: (
                moment
                if is_masked(moment)
                else _place(moment, place if moment.shape == param.shape else replicated)
            ),
            jax.eval_shape(optimizer.init, params),
            params,
            moments,
            transform_non_params=lambda leaf: _place(leaf, replicated),
            is_leaf=is_masked,
        )
    step = cast(Any, jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated))
    frozen = None if frozen is None else _abstract(frozen, mesh)
    return TrainState(step, params, opt_state, frozen, step)


def _abstract(boxed: Any, mesh: Mesh) -> Params:
    return jax.tree.map(_place, unbox(boxed), parameter_shardings(boxed, mesh))


def _place(shape: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)


def abstract_model(objective: Objective, mesh: Mesh) -> Params:
    """Returns the parameters of `Objective.init_model` as ShapeDtypeStructs with shardings."""
    return _abstract(objective.init_model_shapes, mesh)


def init_state(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    abstract: TrainState | None = None,
    given: Params | None = None,
) -> TrainState:
    """Returns a newly initialized state in the form of `abstract` (default: the result of `abstract_state`).

    It is created on the devices that hold it, so no device ever holds the whole of a sharded array. Frozen
    parameters without values are initialized by `Objective.init_model`. `given` are some or all of the
    parameters of `Objective.init_model`, which replace the initial values. Arrays that are already on the
    devices become part of the state, so a train step that donates its state deletes them.
    """
    form = abstract or abstract_state(objective, optimizer, mesh)
    trained, frozen = objective.split(given) if given else ({}, None)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, form)
    places = flatten(shardings.params)
    values = {name: _placed(x, places[name]) for name, x in flatten(trained).items() if name in places}

    def init(seed):
        key = jax.random.key(seed, impl="threefry2x32")
        params = unbox(objective.init(key))
        # XLA removes the initializers of parameters that were passed in.
        others = {name: x for name, x in flatten(params).items() if name not in values}
        zero = jnp.zeros((), jnp.int32)
        return TrainState(zero, others, optimizer.init(params), None, zero)

    others = {name: place for name, place in places.items() if name not in values}
    initialize = jax.jit(init, out_shardings=shardings.replace(params=others, frozen=None))
    state = initialize(on_all_devices(np.uint32(seed), mesh))
    values |= state.params
    structure = jax.tree.structure(shardings.params)
    state = state.replace(params=jax.tree.unflatten(structure, [values[name] for name in places]))
    if shardings.frozen is None:
        return state
    initial = _initial_frozen(objective, shardings.frozen, seed, flatten(frozen))
    return state.replace(frozen=place_frozen(objective, shardings.frozen, initial))


def _placed(x: Any, sharding: NamedSharding, may_alias: bool | None = None) -> jax.Array:
    if isinstance(x, jax.Array):
        return jax.device_put(x, sharding, may_alias=may_alias)
    return from_host(np.asarray(x), sharding)


def _initial_frozen(objective: Objective, shardings: Any, seed: int, given: Params) -> dict[str, jax.Array]:
    places = flatten(shardings)
    values = {name: _placed(x, places[name]) for name, x in given.items() if name in places}
    without = without_values(objective) - values.keys()

    def init(seed):
        params = objective.init_model(jax.random.key(seed, impl="threefry2x32"))
        initial = flatten(unbox(objective.split(params)[1]))
        return {name: x for name, x in initial.items() if name in without}

    made = jax.eval_shape(init, np.uint32(seed)) if without else {}
    if not made:
        return values
    initialize = jax.jit(init, out_shardings={name: places[name] for name in made})
    return values | initialize(on_all_devices(np.uint32(seed), next(iter(places.values())).mesh))


def without_values(objective: Objective) -> set[str]:
    """Returns the names of the objective's frozen parameters that are only shapes, rather than arrays."""
    leaves = flatten(unbox(objective.frozen()))
    return {name for name, x in leaves.items() if isinstance(x, jax.ShapeDtypeStruct)}


def place_frozen(objective: Objective, shardings: Any, initial: Mapping[str, jax.Array]) -> Params | None:
    """Returns copies of the objective's frozen parameters with the shardings of `TrainState.frozen`, or None.

    Values in `initial`, by name, have these shardings and have priority over the objective's values.
    """

    def place(path, x, sharding):
        if (name := name_of(path)) in initial:
            return initial[name]
        return _placed(x, sharding, may_alias=False)  # The train step donates its state.

    frozen = objective.frozen()
    return None if frozen is None else jax.tree_util.tree_map_with_path(place, unbox(frozen), shardings)
