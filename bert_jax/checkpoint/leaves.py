"""Describes the named leaves of a checkpoint and compares them with the requested leaves."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from bert_jax.errors import UserError
from bert_jax.io.wording import counted, some
from bert_jax.models.parameters import name_of
from bert_jax.parallel.sharding import from_host

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The metadata of one saved array: its shape, the name of its dtype, and its checksum (16 hex digits)."""

    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `load_params`, with parameter names such as `encoder/pooler/kernel`."""

    source: str  # the step directory that was read
    loaded: tuple[str, ...]  # the parameters taken from the checkpoint
    new: tuple[str, ...]  # the requested parameters that it does not have
    unused: tuple[str, ...]  # its parameters that were not requested
    base: str = ""  # the absolute path of the checkpoint to which the run adds low-rank updates, if it does

    def __str__(self) -> str:
        groups = collections.Counter(name.split("/")[0] for name in self.unused)
        unused = ", ".join(f"{group} ({count})" for group, count in sorted(groups.items()))
        return (
            f"loaded {counted(len(self.loaded), 'tensor')} from {self.source}; "
            f"new: {', '.join(self.new) or 'none'}; not used: {unused or 'none'}"
        )


def check_leaves(
    path: str,
    saved: Mapping[str, Leaf | np.ndarray | jax.Array],
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    same_names: bool = False,
) -> None:
    """Raises a UserError, which names the checkpoint, if a leaf both saved and requested has another shape.

    With `same_names`, the names and dtypes have to be the same, too.
    """
    both = [name for name in wanted if name in saved]
    differing = [
        f"{name} has shape {tuple(saved[name].shape)} there and {tuple(wanted[name].shape)} here"
        for name in both
        if tuple(saved[name].shape) != tuple(wanted[name].shape)
    ]
    if same_names:
        differing += [f"{name} is missing there" for name in wanted if name not in saved]
        differing += [f"{name} is missing here" for name in saved if name not in wanted]
        differing += [
            f"{name} is {saved[name].dtype} there and {wanted[name].dtype} here"
            for name in both
            if jnp.dtype(saved[name].dtype) != wanted[name].dtype
        ]
    if differing:
        raise UserError(f"{path} has another model or optimizer: {some(differing)}")


def select_params(
    source: str, stored: Mapping[str, np.ndarray | jax.Array], abstract_params: PyTree
) -> tuple[dict, Report]:
    """Returns the nested dict of the parameters that a checkpoint and a model share, and the report.

    `stored` are the parameters of the checkpoint `source` by name, and `abstract_params` a nested dict of
    jax.ShapeDtypeStruct. Parameters without a sharding are placed on the default device; parameters stored
    with another dtype are cast. It raises UserError if a shape differs, or if there is no common parameter.
    """
    wanted = flatten(abstract_params)
    check_leaves(source, stored, wanted)
    loaded, new = ([name for name in wanted if (name in stored) == has] for has in (True, False))
    if not loaded:
        raise UserError(f"{source} has no parameter of this model; it has {some(stored)}, not {some(wanted)}")

    def place(name: str) -> jax.Array:
        array, sharding = np.asarray(stored[name], wanted[name].dtype), wanted[name].sharding
        return jnp.asarray(array) if sharding is None else from_host(array, sharding)

    unused = tuple(name for name in stored if name not in wanted)
    return nest({name: place(name) for name in loaded}), Report(source, tuple(loaded), tuple(new), unused)


def check_finite(source: str, arrays: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Raises a UserError that names an array with NaN or infinite values, in the shards of this process."""
    for name, x in arrays.items():
        shards = getattr(x, "addressable_shards", None)
        own = [x] if shards is None else [one.data for one in shards if not one.replica_id]
        if not all(np.isfinite(one).all() for one in jax.device_get(own)):
            raise UserError(f"{source}: {name} has values that are not finite (NaN or infinity)")


def flatten(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves of a pytree by name (`params/encoder/pooler/kernel`), in jax.tree.leaves order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name_of(path): leaf for path, leaf in leaves}


def nest(flat: Mapping[str, Any]) -> dict:
    """Returns a nested dict of leaves that are given by names such as `params/encoder/pooler/kernel`."""
    return unflatten_dict(dict(flat), sep="/")
