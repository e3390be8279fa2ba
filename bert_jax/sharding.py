"""The mesh, and one ordered list of rules from logical axis names to its axes.

Parameters carry logical names ("embed", "mlp", ...) and know no mesh; the rules decide where each dimension
goes. Data and fsdp both split the batch; fsdp also splits every large parameter and its moments (ZeRO-3),
tensor splits attention heads, the feed-forward's inner dimension and the vocabulary (Megatron).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.step import Task, TrainState

AXES = ("data", "fsdp", "tensor")

# In order: for each dimension the first rule whose mesh axes are still free in this array and divide it.
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batch", ("data", "fsdp")),
    ("vocab", ("tensor",)),
    ("heads", ("tensor",)),
    ("mlp", ("tensor",)),
    ("embed", ("fsdp",)),
    ("embed_out", ("tensor",)),
    ("vocab", ("fsdp",)),
    ("position", ("fsdp",)),
)


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Any = None) -> Mesh:
    """A mesh of (data, fsdp, tensor); one size may be -1 and takes the devices that the others leave."""
    devices = list(jax.devices() if devices is None else devices)
    sizes = [data, fsdp, tensor]
    text = f"mesh data={data} fsdp={fsdp} tensor={tensor}"
    if sizes.count(-1) > 1 or any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"{text}: each size must be at least 1, and at most one of them -1")
    known = math.prod(size for size in sizes if size != -1)
    sizes = [len(devices) // known if size == -1 else size for size in sizes]
    if math.prod(sizes) != len(devices):
        raise UserError(f"{text} does not fit {len(devices)} devices; their product must be {len(devices)}")
    if devices[0].platform == "cpu":
        return Mesh(np.array(devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * 3)
    slices = len({getattr(device, "slice_index", None) for device in devices})
    try:
        if slices > 1 and devices[0].platform == "tpu":
            return _mesh_of_slices(sizes, slices, devices, text)
        return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)
    except NotImplementedError as error:
        raise UserError(
            f"{text}: {sizes} cannot be laid along the torus of these chips; choose sizes that are products "
            "of its sides"
        ) from error


def _mesh_of_slices(sizes: list[int], slices: int, devices: list[Any], text: str) -> Mesh:
    """The slices along data, whose traffic is the least and least urgent: the network between them is the
    slow one."""
    data, *inner = sizes
    if data % slices:
        raise UserError(f"{text}: data={data} must be a multiple of the {slices} slices, which lie along it")
    array = mesh_utils.create_hybrid_device_mesh(
        (data // slices, *inner), (slices, 1, 1), devices, allow_split_physical_axes=True
    )
    return Mesh(array, AXES, axis_types=(AxisType.Auto,) * 3)


def partition_spec(names: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Where the dimensions of an array with these logical names go; a dimension that no rule fits is
    replicated."""
    spec: list[Any] = [None] * len(names)
    used: set[str] = set()
    for rule, axes in RULES:
        for dimension, name in enumerate(names):
            size = math.prod(mesh.shape[axis] for axis in axes)
            if (
                name == rule
                and spec[dimension] is None
                and not used & set(axes)
                and shape[dimension] % size == 0
            ):
                spec[dimension] = axes if len(axes) > 1 else axes[0]
                used |= set(axes)
    return PartitionSpec(*spec)


def parameter_shardings(boxed: Any, mesh: Mesh) -> Any:
    """NamedShardings for a tree of (abstract) parameters boxed with their logical names."""
    return jax.tree.map(
        lambda box: NamedSharding(mesh, partition_spec(box.names, box.value.shape, mesh)),
        boxed,
        is_leaf=_is_box,
    )


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.Partitioned)


def unbox(boxed: Any) -> Any:
    """The bare values. Flax's own unbox would constrain each by the logical rules, which here are
    partition_spec's work."""
    return jax.tree.map(lambda box: box.value, boxed, is_leaf=_is_box)


def abstract_state(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The whole state as ShapeDtypeStructs that carry shardings; moments lie as their parameters do."""
    boxed = jax.eval_shape(task.init, jax.random.key(0))
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(shape, sharding):
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = jax.tree.map(place, unbox(boxed), parameter_shardings(boxed, mesh))

    def is_frozen(moment):
        return isinstance(moment, optax.MaskedNode)

    opt_state = optax.tree_map_params(
        optimizer,
        lambda moment, param: moment if is_frozen(moment) else place(moment, param.sharding),
        jax.eval_shape(optimizer.init, params),
        params,
        transform_non_params=lambda leaf: place(leaf, replicated),
        is_leaf=is_frozen,
    )
    return TrainState(jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated), params, opt_state)


def state_shardings(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """NamedShardings of the whole state."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract_state(task, optimizer, mesh))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def check_batch_size(batch_size: int, mesh: Mesh, accumulate_steps: int = 1) -> None:
    """UserError unless every device gets whole rows of every part of the batch."""
    parts = mesh.shape["data"] * mesh.shape["fsdp"] * accumulate_steps
    if batch_size < 1 or batch_size % parts:
        raise UserError(
            f"batch_size={batch_size} must be a multiple of data x fsdp x accumulate_steps = "
            f"{mesh.shape['data']} x {mesh.shape['fsdp']} x {accumulate_steps} = {parts}"
        )


def global_batch(local: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """This host's contiguous slice of rows -> global arrays on the mesh."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in local.items()}


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """Tracing inside this context, logical constraints in the model mean the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules([(name, axes) for name, axes in RULES]):
        yield


def init_state(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int) -> TrainState:
    """A fresh state, made on the devices that hold it: no device ever holds the whole of a sharded one."""

    def init(seed):
        params = unbox(task.init(jax.random.key(seed, impl="threefry2x32")))
        return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))

    return jax.jit(init, out_shardings=state_shardings(task, optimizer, mesh))(np.uint32(seed))


def jit_train_step(train_step: Callable, mesh: Mesh, shardings: TrainState) -> Callable:
    """The train step compiled for the mesh; the state's buffers are donated."""
    replicated = NamedSharding(mesh, PartitionSpec())
    return _in_context(
        jax.jit(
            train_step,
            in_shardings=(shardings, batch_sharding(mesh), replicated),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
        ),
        mesh,
    )


def jit_eval_step(eval_step: Callable, mesh: Mesh, shardings: TrainState) -> Callable:
    """The evaluation step compiled for the mesh: (params, batch, batch index) -> replicated sums and
    weights."""
    replicated = NamedSharding(mesh, PartitionSpec())
    return _in_context(
        jax.jit(
            eval_step,
            in_shardings=(shardings.params, batch_sharding(mesh), replicated),
            out_shardings=replicated,
        ),
        mesh,
    )


class _in_context:
    """A jitted function that is traced, lowered and called on its mesh."""

    def __init__(self, function, mesh):
        self._function, self._mesh = function, mesh

    def __call__(self, *args):
        with on_mesh(self._mesh):
            return self._function(*args)

    def lower(self, *args):
        with on_mesh(self._mesh):
            return self._function.lower(*args)
