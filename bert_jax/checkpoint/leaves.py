"""Describes the named leaves of a checkpoint and compares them with those that are requested."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from bert_jax.errors import UserError
from bert_jax.io.wording import counted, some
from bert_jax.models.parameters import name_of

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The metadata of one saved array: its shape, the name of its dtype, and its checksum (16 hex digits)."""

    shape: tuple[int, ...]
    dtype: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `load_params`, with parameter names such as `encoder/pooler/kernel`.

    Attributes:
        source: the step directory that was read.
        loaded: the parameters taken from the checkpoint.
        new: the requested parameters that the checkpoint does not have.
        unused: the parameters of the checkpoint that were not requested.
        base: the absolute path of the checkpoint to which the low-rank updates of the run are added; "" if it
            has none.
    """

    source: str
    loaded: tuple[str, ...]
    new: tuple[str, ...]
    unused: tuple[str, ...]
    base: str = ""

    @classmethod
    def of(cls, source: str, wanted: Collection[str], stored: Collection[str]) -> Report:
        """Returns the report for the names of the requested parameters and of those of the checkpoint."""
        loaded = tuple(name for name in wanted if name in stored)
        new = tuple(name for name in wanted if name not in stored)
        return cls(source, loaded, new, tuple(name for name in stored if name not in wanted))

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.new)
        text = f"loaded {len(self.loaded)} of {counted(total, 'tensor')} from {self.source}"
        for what, names in (("new", self.new), ("not used", self.unused)):
            text += f"; {what}: {', '.join(names)}" if names else ""
        return text


def check_structure(path: str, saved: Mapping[str, Leaf], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Raises a UserError unless the saved leaves have the wanted names, shapes and dtypes."""
    check_shapes(path, saved, wanted)
    only_here = [name for name in wanted if name not in saved]
    only_there = [name for name in saved if name not in wanted]
    if only_here or only_there:
        differing = [f"it has no {some(only_here)}"] if only_here else []
        differing += [f"it has {some(only_there)} that this one lacks"] if only_there else []
        raise UserError(f"{path} is of another model or optimizer: {'; '.join(differing)}")
    for name, x in wanted.items():
        if jnp.dtype(saved[name].dtype) != x.dtype:
            raise UserError(f"{path}: {name} is {saved[name].dtype} there and {x.dtype} here")


def check_shapes(
    path: str, saved: Mapping[str, Leaf | np.ndarray], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> None:
    """Raises a UserError if a leaf that is both saved and wanted has another shape."""
    differing = [name for name, x in wanted.items() if name in saved and saved[name].shape != tuple(x.shape)]
    if differing:
        there, here = (sizes({name: x.shape for name, x in leaves.items()}) for leaves in (saved, wanted))
        if fields := [name for name in here if there.get(name, here[name]) != here[name]]:
            listed = ", ".join(f"{name} is {there[name]} there and {here[name]} here" for name in fields)
            raise UserError(f"{path} is of another model: {listed}")
        name, more = differing[0], len(differing) - 1
        raise UserError(
            f"{path} is of another model: {name} has shape {saved[name].shape} there and "
            f"{tuple(wanted[name].shape)} here" + (f", and {more} more differ" if more else "")
        )


def check_finite(source: str, arrays: Mapping[str, np.ndarray | jax.Array]) -> None:
    """Raises a UserError that names an array with NaN or infinite values, in the shards of this process."""
    for name, x in arrays.items():
        shards = getattr(x, "addressable_shards", None)
        own = [x] if shards is None else [one.data for one in shards if not one.replica_id]
        if not all(np.isfinite(one).all() for one in jax.device_get(own)):
            raise UserError(f"{source}: {name} has values that are not finite (NaN or infinity)")


# The axis from which each size of the model is read: {parameter: {field of EncoderConfig: axis}}.
_SIZES = {
    "encoder/layers/stack/layer/query/kernel": {
        "num_hidden_layers": 0,
        "hidden_size": 1,
        "num_attention_heads": 2,
    },
    "encoder/layers/stack/layer/intermediate/kernel": {"intermediate_size": -1},
    # Layers that share their parameters, whose number is not in any shape.
    **{
        f"encoder/layers/{run}/{layer}/query/kernel": {"hidden_size": 0, "num_attention_heads": 1}
        for run in ("shared", "shared_0")
        for layer in ("layer", "layer_0")
    },
    **{
        f"encoder/layers/{run}/{layer}/intermediate/kernel": {"intermediate_size": -1}
        for run in ("shared", "shared_0")
        for layer in ("layer", "layer_0")
    },
    "encoder/embeddings/projection/kernel": {"embedding_size": 0},
    "encoder/embeddings/position_embeddings": {"max_position_embeddings": 0},
    "encoder/embeddings/token_type_embeddings": {"type_vocab_size": 0},
    "encoder/embeddings/word_embeddings": {"vocab_size": 0},
}


def sizes(shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns the sizes of a model, by field name of EncoderConfig, derived from its parameters' shapes.

    Args:
        shapes: shapes by parameter names such as `encoder/...` or `params/encoder/...`. Sizes that depend on
            missing parameters are left out.
    """
    by_name = {name.removeprefix("params/"): shape for name, shape in shapes.items()}
    return {
        field: by_name[name][axis]
        for name, axes in _SIZES.items()
        if name in by_name
        for field, axis in axes.items()
        if axis < len(by_name[name])
    }


def flatten(tree: PyTree) -> dict[str, Any]:
    """Returns the leaves of a pytree by name (`params/encoder/pooler/kernel`), in jax.tree.leaves order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {name_of(path): leaf for path, leaf in leaves}


def nest(flat: Mapping[str, Any]) -> dict:
    """Returns a nested dict of leaves that are given by names such as `params/encoder/pooler/kernel`."""
    return unflatten_dict(dict(flat), sep="/")
