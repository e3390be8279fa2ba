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
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError
from bert_jax.parallel import compiler_options

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
    """A mesh of (data, fsdp, tensor); one size may be -1 and takes the devices that the others leave.

    Over several slices of TPU the outermost axis that can goes across them, through the data centre's
    network: data, whose traffic is one all-reduce a step, or else fsdp. The others stay within a slice.
    """
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
    # Only TPUs have slices; a GPU's host counts as one, which jax sees to itself.
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
        raise UserError(
            f"{text}: {sizes} cannot be laid along the torus of these chips; choose sizes that are products "
            "of its sides"
        ) from error


def _split_over_slices(sizes: list[int], slices: int) -> tuple[list[int], list[int]]:
    """(the sizes across slices, the sizes within each)."""
    for axis, name in enumerate(AXES):
        if name != "tensor" and sizes[axis] % slices == 0:
            across = [slices if i == axis else 1 for i in range(len(sizes))]
            return across, [size // part for size, part in zip(sizes, across, strict=True)]
    shape = " ".join(f"{name}={size}" for name, size in zip(AXES, sizes, strict=True))
    raise UserError(f"mesh {shape} on {slices} slices: make data, or else fsdp, a multiple of {slices}")


def partition_spec(names: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Where the dimensions of an array with these logical names go; a dimension that no rule fits is
    replicated.
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
    partition_spec's work.
    """
    return jax.tree.map(lambda box: box.value, boxed, is_leaf=_is_box)


def abstract_replicated(init: Callable[[jax.Array], Any], mesh: Mesh) -> Any:
    """Returns the shapes of the parameters that `init` makes, each on every device of the mesh.

    Args:
        init: key -> parameters boxed with their logical names.
        mesh: where they are wanted.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=replicated),
        unbox(jax.eval_shape(init, jax.random.key(0))),
    )


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


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """int64 [b], ascending: the rows of a global batch that lie on this process's devices.

    On a torus they are no stretch of the batch, and processes that split tensors alone have the same rows.
    """
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    stretches = sorted({rows.indices(batch_size)[:2] for (rows,) in filter(None, places)})
    return np.concatenate([np.arange(*stretch) for stretch in stretches])


def global_batch(local: dict[str, np.ndarray], mesh: Mesh) -> dict[str, jax.Array]:
    """The rows that `local_rows` names for this process -> global arrays on the mesh."""
    sharding = batch_sharding(mesh)
    return {name: jax.make_array_from_process_local_data(sharding, array) for name, array in local.items()}


@contextlib.contextmanager
def on_mesh(mesh: Mesh) -> Iterator[None]:
    """Tracing inside this context, logical constraints in the model mean the mesh."""
    with jax.set_mesh(mesh), nn.logical_axis_rules([(name, axes) for name, axes in RULES]):
        yield


def jit_train_step(train_step: Callable, mesh: Mesh, shardings: Any) -> Callable:
    """Returns the train step compiled for the mesh.

    Args:
        shardings: those of the train state, whose buffers are donated.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    return _InContext(
        jax.jit(
            train_step,
            in_shardings=(shardings, batch_sharding(mesh), replicated),
            out_shardings=(shardings, replicated),
            donate_argnums=0,
            compiler_options=compiler_options.for_mesh(mesh),
        ),
        mesh,
    )


def jit_eval_step(eval_step: Callable, mesh: Mesh, shardings: Any) -> Callable:
    """Returns the evaluation step compiled for the mesh: (params, batch, batch index) -> replicated pairs, or
    (params, batch, batch index, frozen) -> them where the state has frozen parameters.

    Args:
        shardings: those of the train state, of which this step takes `params` and `frozen`.
    """
    replicated = NamedSharding(mesh, PartitionSpec())
    frozen = () if shardings.frozen is None else (shardings.frozen,)
    return _InContext(
        jax.jit(
            eval_step,
            in_shardings=(shardings.params, batch_sharding(mesh), replicated, *frozen),
            out_shardings=replicated,
            compiler_options=compiler_options.for_mesh(mesh),
        ),
        mesh,
    )


class _InContext:
    """A jitted function that is traced, lowered and called on its mesh."""

    def __init__(self, function, mesh):
        self._function, self._mesh = function, mesh

    def __call__(self, *args):
        with on_mesh(self._mesh):
            return self._function(*args)

    def lower(self, *args):
        with on_mesh(self._mesh):
            return self._function.lower(*args)
