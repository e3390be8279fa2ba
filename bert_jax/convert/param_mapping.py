"""Parameters by their names and layouts in files, and back: the machinery behind each family's table.

Both directions of every conversion read the same table, so a name stands in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.models.assembled import Parameter

HUGGINGFACE, TENSORFLOW = "huggingface", "tensorflow"

# How a parameter lies in the files; here a kernel is [inputs..., outputs...].
VECTOR = "vector"  # [N] in both
TABLE = "table"  # [rows, H] in both
DENSE = "dense"  # [inputs, outputs] in TensorFlow, transposed in Hugging Face
HEAD = "head"  # transposed in both: google-research/bert multiplies these from the other side

_TRANSPOSED = {HUGGINGFACE: (DENSE, HEAD), TENSORFLOW: (HEAD,)}


class Entry(NamedTuple):
    """One parameter: its path here, its name in each kind of file, and how it lies in them.

    In the name of a layer's parameter `{layer}` is the layer's number, which is the leading axis here.
    """

    ours: str
    names: Mapping[str, str]
    layout: str

    def name(self, kind: str, layer: int | None = None) -> str:
        """Returns the name in a kind of file; of one layer, where the parameter is one of a layer."""
        name = self.names[kind]
        return name if layer is None else name.format(layer=layer)

    @property
    def layered(self) -> bool:
        """Whether every layer has a tensor of its own in the files."""
        return any("{layer}" in name for name in self.names.values())


def entry(ours: str, huggingface: str, tensorflow: str | None, layout: str) -> Entry:
    """Returns the entry of a parameter; `tensorflow` is None where TF1 checkpoints have no such thing."""
    names = {HUGGINGFACE: huggingface}
    return Entry(ours, names if tensorflow is None else names | {TENSORFLOW: tensorflow}, layout)


def dense(ours: str, huggingface: str, tensorflow: str | None = None, bias: bool = True) -> list[Entry]:
    """Returns the entries of a dense layer."""
    kernel = entry(f"{ours}/kernel", f"{huggingface}.weight", _below(tensorflow, "/kernel"), DENSE)
    if not bias:
        return [kernel]
    return [kernel, entry(f"{ours}/bias", f"{huggingface}.bias", _below(tensorflow, "/bias"), VECTOR)]


def norm(ours: str, huggingface: str, tensorflow: str | None = None) -> list[Entry]:
    """Returns the entries of a LayerNorm."""
    return [
        entry(f"{ours}/scale", f"{huggingface}.weight", _below(tensorflow, "/gamma"), VECTOR),
        entry(f"{ours}/bias", f"{huggingface}.bias", _below(tensorflow, "/beta"), VECTOR),
    ]


def head(ours: str, huggingface: str, tensorflow: str | None = None) -> list[Entry]:
    """Returns the entries of the last dense layer of a head."""
    return [
        entry(f"{ours}/kernel", f"{huggingface}.weight", _below(tensorflow, "output_weights"), HEAD),
        entry(f"{ours}/bias", f"{huggingface}.bias", _below(tensorflow, "output_bias"), VECTOR),
    ]


def _below(parent: str | None, name: str) -> str | None:
    return None if parent is None else parent + name


def _stored(array: np.ndarray, layout: str, kind: str, hidden_size: int) -> np.ndarray:
    """Returns one parameter as it lies in a file."""
    if layout == VECTOR:
        return array.reshape(-1)
    if layout == TABLE:
        return array
    if array.ndim == 3:  # split into heads, on one side or the other
        array = array.reshape(hidden_size, -1)
    return np.ascontiguousarray(array.T) if layout in _TRANSPOSED[kind] else array


def _stored_shape(shape: tuple[int, ...], layout: str, kind: str, hidden_size: int) -> tuple[int, ...]:
    """Returns the shape that `_stored` gives an array of a shape, which may be larger than any memory."""
    if layout == VECTOR:
        return (math.prod(shape),)
    if len(shape) == 3:
        shape = (hidden_size, math.prod(shape) // hidden_size)
    return shape[::-1] if layout in _TRANSPOSED[kind] else shape


def to_files(
    params: Mapping[str, np.ndarray], table: Sequence[Entry], kind: str, layers: int, hidden_size: int
) -> dict[str, np.ndarray]:
    """Returns {name in the file: array} of parameters by their names here.

    Args:
        params: by flat names; what is not in the table is left out.
        table: of the family.
        kind: HUGGINGFACE or TENSORFLOW.
        layers: number of layers.
        hidden_size: of the encoder.
    """
    tensors = {}
    for one in table:
        if one.ours not in params:
            continue
        array = np.asarray(params[one.ours])
        if not one.layered:
            tensors[one.name(kind)] = _stored(array, one.layout, kind, hidden_size)
            continue
        for layer in range(layers):
            tensors[one.name(kind, layer)] = _stored(array[layer], one.layout, kind, hidden_size)
    return tensors


class Found(NamedTuple):
    """What `from_files` made of the tensors of a file."""

    params: dict[str, np.ndarray]
    missing: list[str]  # names in the file: layers that lack what others have
    misshapen: list[str]  # "NAME is [2, 3], expected [3, 2]"
    unknown: list[str]  # names in the file that no row of the table has
    beside: list[str]  # names of what is no parameter: optimizer state, counters, buffers


def from_files(
    tensors: Mapping[str, np.ndarray],
    table: Sequence[Entry],
    expected: Mapping[str, Parameter],
    kind: str,
    hidden_size: int,
    beside: re.Pattern[str],
) -> Found:
    """Returns parameters by their names here, of tensors by their names in a file.

    Args:
        tensors: their values may be anything with a shape that `numpy.asarray` takes.
        table: of the family.
        expected: every parameter that the table names, as the modules have it.
        kind: HUGGINGFACE or TENSORFLOW.
        hidden_size: of the encoder.
        beside: matches the names of tensors that are no parameters.
    """
    found = Found({}, [], [], [], [])
    used = set()
    for one in table:
        shape = expected[one.ours].shape
        layers: Sequence[int | None] = [None]
        if one.layered:
            # A file has no more layers than tensors, whatever its configuration claims.
            layers, shape = range(min(shape[0], len(tensors) + 1)), shape[1:]
        names = [one.name(kind, layer) for layer in layers]
        present = [name for name in names if name in tensors]
        used.update(present)
        if len(present) < len(names):
            found.missing.extend(name for name in names if present and name not in tensors)
            continue
        stored_shape = _stored_shape(shape, one.layout, kind, hidden_size)
        wrong = [name for name in names if tuple(tensors[name].shape) != stored_shape]
        if wrong:
            found.misshapen.extend(
                f"{name} is {list(tensors[name].shape)}, expected {list(stored_shape)}" for name in wrong
            )
            continue
        transposed = one.layout in _TRANSPOSED[kind]
        arrays = [np.asarray(tensors[name]) for name in names]
        arrays = [(array.T if transposed else array).reshape(shape) for array in arrays]
        found.params[one.ours] = np.stack(arrays) if one.layered else np.ascontiguousarray(arrays[0])
    for name in tensors:
        if name not in used:
            (found.beside if beside.fullmatch(name) else found.unknown).append(name)
    return found
