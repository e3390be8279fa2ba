"""The device mesh, and an ordered list of rules that map logical axis names to mesh axes.

Parameters carry logical axis names ("embed", "mlp", ...) and do not depend on the mesh; the rules decide how
each dimension is sharded. The axes `data` and `fsdp` both split the batch. The axis `fsdp` also splits every
large parameter and its moments (ZeRO-3); `data` can split the moments alone (ZeRO-1). The axis `tensor`
splits the attention heads, the inner dimension of the feed-forward layer and the vocabulary (Megatron).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.kernels.dropout import dropout_rows
from bert_jax.models.parameters import is_box
from bert_jax.parallel import compiler_options
from bert_jax.settings.run_config import MeshConfig

AXES = ("data", "fsdp", "tensor")

# The rules apply in order. Each dimension gets the first rule whose mesh axes are not yet used in the array
# and whose size divides the dimension.
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


def mesh_of(config: MeshConfig, devices: Any = None) -> Mesh:
    """Returns the mesh of a run's configuration; see `make_mesh`."""
    return make_mesh(config.data, config.fsdp, config.tensor, devices)


def make_mesh(data: int = -1, fsdp: int = 1, tensor: int = 1, devices: Any = None) -> Mesh:
    """Returns a mesh with the axes (data, fsdp, tensor) on some devices, or on all.

    One of the three sizes may be -1, which stands for the remaining devices. On several TPU slices, one axis
    extends over the slices, through the data-center network. It is `data`, whose traffic is one all-reduce
    per step, if its size allows it, or else `fsdp`. The other axes stay within a slice.

    Raises:
        UserError: the sizes are invalid, their product is not the number of devices, or they do not fit the
            topology of the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    sizes = [data, fsdp, tensor]
    text = f"mesh data={data} fsdp={fsdp} tensor={tensor}"
    known = math.prod(size for size in sizes if size != -1)
    resolved = [len(devices) // max(known, 1) if size == -1 else size for size in sizes]
    if sizes.count(-1) > 1 or min(resolved) < 1 or math.prod(resolved) != len(devices):
        raise UserError(
            f"{text}: data x fsdp x tensor must be {len(devices)}, the number of devices; one may be -1"
        )
    sizes = resolved
    if devices[0].platform == "cpu":
        return Mesh(np.array(devices).reshape(sizes), AXES, axis_types=(AxisType.Auto,) * 3)
    # On GPUs, `slice_index` is the host, which jax.make_mesh handles. Only TPUs have slices.
    slices = len({getattr(device, "slice_index", None) for device in devices})
    try:
        if slices > 1 and devices[0].platform == "tpu":
            across, within = _split_over_slices(sizes, slices)
            grid = mesh_utils.create_hybrid_device_mesh(
                within, across, devices, allow_split_physical_axes=True
            )
            return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)
        return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)
    except NotImplementedError as error:
        raise UserError(f"{text}: expected products of the sides of the chips' torus") from error


def _split_over_slices(sizes: list[int], slices: int) -> tuple[list[int], list[int]]:
    for axis, name in enumerate(AXES):
        if name != "tensor" and sizes[axis] % slices == 0:
            across = [slices if i == axis else 1 for i in range(len(sizes))]
            return across, [size // part for size, part in zip(sizes, across, strict=True)]
    raise UserError(f"mesh on {slices} slices: mesh.data or mesh.fsdp must be a multiple of {slices}")


def partition_spec(names: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the PartitionSpec of an array by the logical names, or None, and the sizes of its dimensions.

    A dimension that no rule fits is replicated.
    """
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


def split_over_data(spec: PartitionSpec, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Returns the PartitionSpec of an array that is also split over `data`, as ZeRO-1 does with moments.

    It splits the first divisible dimension. Dimensions that are already split are tried last, and the layer
    dimension of a stack just before them, so that each device has a part of every layer. An array without a
    divisible dimension keeps its PartitionSpec.
    """
    listed = [(names,) if isinstance(names, str) else names or () for names in spec]
    axes = [tuple(name for name in names if mesh.shape[name] > 1) for names in listed]
    for axis in sorted(range(len(axes)), key=lambda i: (bool(axes[i]), i == 0 and len(axes) > 2)):
        if shape[axis] % math.prod(mesh.shape[name] for name in (*axes[axis], "data")) == 0:
            axes[axis] += ("data",)
            break
    return PartitionSpec(*(names or None for names in axes))


def parameter_shardings(boxed: Any, mesh: Mesh, over_data: bool = False) -> Any:
    """Returns the NamedShardings of a tree of (abstract) parameters boxed with their logical axis names.

    `over_data` also splits them over `data`, as `split_over_data` does.
    """

    def of_parameter(box):
        spec = partition_spec(box.names, box.value.shape, mesh)
        return NamedSharding(mesh, split_over_data(spec, box.value.shape, mesh) if over_data else spec)

    return jax.tree.map(of_parameter, boxed, is_leaf=is_box)


def unbox(boxed: Any) -> Any:
    """Returns the values of boxed parameters; Flax's own `unbox` would also add a sharding constraint."""
    return jax.tree.map(lambda box: box.value, boxed, is_leaf=is_box)


def abstract_replicated(boxed: Any, mesh: Mesh) -> Any:
    """Returns the shapes of boxed parameters, with shardings, replicated over the mesh."""
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated), unbox(boxed)
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch, whose rows are split over `data` and `fsdp`."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def check_batch_size(batch_size: int, mesh: Mesh, accumulate_steps: int) -> None:
    """Raises UserError if the rows of a global batch are not a multiple of data x fsdp x accumulate_steps.

    `accumulate_steps` is 0 if it is chosen later, among those that divide the batch.
    """
    accumulate_steps = accumulate_steps or 1
    parts = mesh.shape["data"] * mesh.shape["fsdp"] * accumulate_steps
    if batch_size < 1 or batch_size % parts:
        raise UserError(
            f"batch_size={batch_size} must be a multiple of mesh.data x mesh.fsdp x accumulate_steps, {parts}"
        )


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the rows of a global batch that are on this process's devices: int64 [b], ascending.

    On a torus, the rows are not necessarily contiguous. Processes that differ only in their place along
    `tensor` have the same rows.
    """
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    stretches = sorted({rows.indices(batch_size)[:2] for (rows,) in filter(None, places)})
    return np.concatenate([np.arange(*stretch) for stretch in stretches])


def global_batch(local: Mapping[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """Returns global arrays on the mesh, made from this process's rows as given by `local_rows`."""
    sharding = batch_sharding(mesh)
    with intended_transfer():
        return {name: jax.make_array_from_process_local_data(sharding, x) for name, x in local.items()}


def on_all_devices(value: np.generic | np.ndarray, mesh: Mesh) -> jax.Array:
    """Returns a copy of a value on every device of a mesh; the processes of a run give the same value."""
    return from_host(np.asarray(value), NamedSharding(mesh, PartitionSpec()))


def from_host(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns an array of the host with a sharding; the processes of a run give the same values."""
    with intended_transfer():  # `jax.device_put` would make the processes compare their values
        return jax.make_array_from_callback(array.shape, sharding, lambda index: np.asarray(array[index]))


def intended_transfer() -> contextlib.AbstractContextManager:
    """Returns a context that allows transfers for which `jax.transfer_guard("disallow")` raises an error."""
    return jax.transfer_guard("allow")


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """Maps the logical sharding constraints of models that are traced inside the context to the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules([(name, axes) for name, axes in RULES]):
        yield


_MOST_LAYERS = 96  # in a stack; see `_sum_over_data`


def sum_over_rows(function: Callable[[Any, Any], Any], given: Any, rows: Any) -> Any:
    """Returns the sums over rows that `function(given, rows)` returns, added up over the devices once.

    All devices have `given`; `rows` are arrays [B, ...] that are split over `data`. If `data` is the only
    axis of the context mesh that splits arrays, each device computes the function from its own rows, with
    their dropout, without any communication, and the results are summed over the devices at the end.
    Otherwise the function is computed from all rows, and XLA's partitioner inserts the sums.
    """
    mesh = jax.sharding.get_abstract_mesh()
    # With `shard_map` over data and the other axes left to the partitioner, XLA aborts for data=2 fsdp=2
    # tensor=2.
    # A mesh made by the caller may lack these axes.
    if mesh.empty or mesh.size == 1 or mesh.shape.get("data", 1) < mesh.size:
        return function(given, rows)

    def of_device(given, rows, numbers):
        with dropout_rows(numbers), nn.logical_axis_rules([]):
            return jax.tree.map(_sum_over_data, function(given, rows))

    numbers = jnp.arange(jax.tree.leaves(rows)[0].shape[0])
    replicated, split = PartitionSpec(), PartitionSpec("data")
    of_devices = jax.shard_map(
        of_device, in_specs=(replicated, split, split), out_specs=replicated, check_vma=False
    )
    return of_devices(given, rows, numbers)


def _sum_over_data(x: jax.Array) -> jax.Array:
    if x.ndim < 3 or len(x) > _MOST_LAYERS:
        return jax.lax.psum(x, "data")
    return jnp.concatenate([jax.lax.psum(layer, "data") for layer in jnp.split(x, len(x))])


def jit_train_step(
    train_step: Callable, mesh: Mesh, shardings: Any, recomputes: bool = False
) -> MeshFunction:
    """Returns a train step (state, batch, seed) -> (state, metrics) compiled for the mesh.

    It donates the buffers of the state, which has these shardings. `recomputes` tells whether it recomputes
    activations to save memory (`model.remat`).
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    return MeshFunction(
        jax.jit(
            train_step,
            in_shardings=(shardings, batch_sharding(mesh), replicated),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
            compiler_options=compiler_options.for_mesh(mesh, recomputes),
        ),
        mesh,
    )


def jit_eval_step(eval_step: Callable, mesh: Mesh, shardings: Any) -> MeshFunction:
    """Returns a step of `training.step.make_eval_step`, whose result is replicated, compiled for the mesh.

    Of the train state, which has these shardings, it takes `params` and, if the state has them, `frozen`.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    frozen = () if shardings.frozen is None else (shardings.frozen,)
    return MeshFunction(
        jax.jit(
            eval_step,
            in_shardings=(shardings.params, batch_sharding(mesh), replicated, replicated, *frozen),
            out_shardings=replicated,
            compiler_options=compiler_options.for_mesh(mesh),
        ),
        mesh,
    )


class MeshFunction:
    """A jitted function that is traced, lowered and called in the context of its mesh."""

    def __init__(self, function: jax.stages.Wrapped, mesh: Mesh):
        self._function, self._mesh = function, mesh

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function in the context of the mesh."""
        with on_mesh(self._mesh):
            return self._function(*args, **kwargs)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """Returns the program for these arguments, which may be abstract."""
        with on_mesh(self._mesh):
            return self._function.lower(*args)
