"""Maps parameters to their names and layouts in files, and back, using each family's table.

Both directions of a conversion use the same table, so every name is defined only once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.models.assembled import Parameter

HUGGINGFACE, TENSORFLOW = "huggingface", "tensorflow"

# The layout of a parameter in the files. In bert_jax a kernel is [inputs..., outputs...].
VECTOR = "vector"  # [N] in both
TABLE = "table"  # [rows, H] in both
DENSE = "dense"  # [inputs, outputs] in TensorFlow, transposed in Hugging Face
HEAD = "head"  # transposed in both: google-research/bert multiplies these from the other side

_TRANSPOSED = {HUGGINGFACE: (DENSE, HEAD), TENSORFLOW: (HEAD,)}


class Entry(NamedTuple):
    """One parameter: its path in bert_jax, its name in each kind of file, and its layout in the files.

    In the name of a layer's parameter, `{layer}` is the number of the layer, which is the leading axis in
    bert_jax.
    """

    ours: str
    names: Mapping[str, str]
    layout: str

    def name(self, kind: str, layer: int | None = None) -> str:
        """Returns the name in a kind of file; `layer` is given for a parameter that every layer has."""
        name = self.names[kind]
        return name if layer is None else name.format(layer=layer)

    @property
    def layered(self) -> bool:
        """Whether every layer has a separate tensor in the files."""
        return any("{layer}" in name for name in self.names.values())


def entry(ours: str, huggingface: str, tensorflow: str | None, layout: str) -> Entry:
    """Returns the entry of a parameter; `tensorflow` is None if TF1 checkpoints do not have it."""
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
    """Returns a parameter in the layout of a file."""
    if layout == VECTOR:
        return array.reshape(-1)
    if layout == TABLE:
        return array
    if array.ndim == 3:  # the inputs or the outputs are split into heads
        array = array.reshape(hidden_size, -1)
    return np.ascontiguousarray(array.T) if layout in _TRANSPOSED[kind] else array


def _stored_shape(shape: tuple[int, ...], layout: str, kind: str, hidden_size: int) -> tuple[int, ...]:
    """Returns the shape of `_stored`'s result for an array of this shape, without allocating the array."""
    if layout == VECTOR:
        return (math.prod(shape),)
    if len(shape) == 3:
        shape = (hidden_size, math.prod(shape) // hidden_size)
    return shape[::-1] if layout in _TRANSPOSED[kind] else shape


def to_files(
    params: Mapping[str, np.ndarray], table: Sequence[Entry], kind: str, layers: int, hidden_size: int
) -> dict[str, np.ndarray]:
    """Returns the arrays to store in a file, by their names in the file.

    Args:
        params: Parameters by flat names; those that are not in the table are left out.
        table: The family's table.
        kind: HUGGINGFACE or TENSORFLOW.
        layers: The number of layers.
        hidden_size: The hidden size of the encoder.
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
    """The result of `from_files`: the parameters of a file, and the names of its other tensors."""

    params: dict[str, np.ndarray]
    missing: list[str]  # names in the file that some layers lack although others have them
    misshapen: list[str]  # "NAME is [2, 3], expected [3, 2]"
    unknown: list[str]  # names in the file that are not in the table
    beside: list[str]  # names of tensors that are not parameters: optimizer state, counters, buffers


def from_files(
    tensors: Mapping[str, np.ndarray],
    table: Sequence[Entry],
    expected: Mapping[str, Parameter],
    kind: str,
    hidden_size: int,
    beside: re.Pattern[str],
) -> Found:
    """Returns the parameters of a file by their names in bert_jax, with its missing and unknown tensors.

    Args:
        tensors: Tensors by name in the file; any objects with a shape that `numpy.asarray` accepts.
        table: The family's table.
        expected: Every parameter in the table, as the modules define it.
        kind: HUGGINGFACE or TENSORFLOW.
        hidden_size: The hidden size of the encoder.
        beside: Matches the names of tensors that are not parameters.
    """
    found = Found({}, [], [], [], [])
    used = set()
    for one in table:
        shape = expected[one.ours].shape
        layers: Sequence[int | None] = [None]
        if one.layered:
            # A file cannot have more layers than tensors, even if its configuration claims so.
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
