"""Maps parameters to their names and layouts in files, and back, using each family's table.

Both directions of a conversion use the same table, so every name is defined only once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.models.assembled import Parameter
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import layer_slices

HUGGINGFACE, TENSORFLOW = "huggingface", "tensorflow"
GENERATOR = "tensorflow_generator"  # names of a second network in the same TF1 checkpoint (ELECTRA)
LAYERS = "encoder/layers/{place}"  # the parameters of a layer, at each of `layer_slices`

# The layout of a parameter in the files. In bert_jax a kernel is [inputs..., outputs...].
VECTOR = "vector"  # [N] in both
TABLE = "table"  # [rows, H] in both
DENSE = "dense"  # [inputs, outputs] in TensorFlow, transposed in Hugging Face
HEAD = "head"  # transposed in both: google-research/bert multiplies these from the other side
CONVOLUTION = "convolution"  # [width, inputs, outputs], reversed in Hugging Face

_TRANSPOSED = {HUGGINGFACE: (DENSE, HEAD, CONVOLUTION), TENSORFLOW: (HEAD,), GENERATOR: (HEAD,)}


class Entry(NamedTuple):
    """One parameter: its path in bert_jax, its name in each kind of file, and its layout in the files.

    The path of a layer's parameter begins with `LAYERS`. Its name in files has `{layer}`, the number of the
    layer; for layers that share their parameters, it has `{group}`. A parameter whose name depends on the
    head has several entries.
    """

    ours: str
    names: Mapping[str, str]  # by kind of file
    layout: str
    heads: tuple[str, ...] = ()  # in whose models the parameter has these names; empty for all
    # (index, count): one of `count` equal parts of a file's tensor along its first axis, as in Wqkv.
    part: tuple[int, int] = (0, 1)

    def tensors(self, kind: str, config: EncoderConfig) -> Iterator[tuple[str, list[str], bool]]:
        """Yields the name of each parameter, the names of its tensors in a file, and whether it is stacked.

        A stacked parameter has one tensor for each index of its first axis.
        """
        theirs = self.names[kind]
        if not self.ours.startswith(LAYERS):
            yield self.ours, [theirs], False
            return
        for each in layer_slices(config):
            numbers = each.numbers[:1] if each.shared else each.numbers
            names = [theirs.format(layer=number, group=each.group) for number in numbers]
            yield self.ours.format(place=each.path), names, not each.shared


def _module(
    parameters: Iterable[tuple[str, str, str, str]],
    ours: str,
    huggingface: str,
    tensorflow: str | None = None,
    heads: tuple[str, ...] = (),
) -> list[Entry]:
    # `parameters` has the suffixes of each path and of its names in both kinds of files, and its layout.
    entries = []
    for end, huggingface_end, tensorflow_end, layout in parameters:
        names = {HUGGINGFACE: huggingface + huggingface_end}
        if tensorflow is not None:
            names[TENSORFLOW] = tensorflow + tensorflow_end
        entries.append(Entry(ours + end, names, layout, heads))
    return entries


dense = functools.partial(
    _module, [("/kernel", ".weight", "/kernel", DENSE), ("/bias", ".bias", "/bias", VECTOR)]
)
norm = functools.partial(
    _module, [("/scale", ".weight", "/gamma", VECTOR), ("/bias", ".bias", "/beta", VECTOR)]
)
convolution = functools.partial(
    _module, [("/kernel", ".weight", "", CONVOLUTION), ("/bias", ".bias", "", VECTOR)]
)
# The last dense layer of a head.
head = functools.partial(
    _module,
    [("/kernel", ".weight", "output_weights", HEAD), ("/bias", ".bias", "output_bias", VECTOR)],
)
table = functools.partial(_module, [("", ".weight", "", TABLE)])
vector = functools.partial(_module, [("", "", "", VECTOR)])


def modules(
    parents: tuple[str, ...], names: Mapping[str, str | tuple[str, str]], heads: tuple[str, ...] = ()
) -> list[Entry]:
    """Returns the entries of the modules inside another module.

    Args:
        parents: the path of the outer module, its name in Hugging Face's files, and in TF1 checkpoints.
        names: {path of a module: its names in both kinds of files}, or a single name, with "/" instead of
            "." in TF1. A path that ends in "embeddings" is a table, in "norm" a norm; others are dense.
        heads: see `Entry`.
    """
    entries = []
    for ours, theirs in names.items():
        pair = (theirs, theirs.replace(".", "/")) if isinstance(theirs, str) else theirs
        make = table if ours.endswith("embeddings") else norm if ours.endswith("norm") else dense
        tensorflow = f"{parents[2]}/{pair[1]}" if len(parents) > 2 else None
        entries += make(f"{parents[0]}/{ours}", f"{parents[1]}.{pair[0]}", tensorflow, heads)
    return entries


def _stored(array: np.ndarray, layout: str, kind: str, hidden_size: int) -> np.ndarray:
    if layout == VECTOR:
        return array.reshape(-1)
    if layout == TABLE:
        return array
    if array.ndim == 3 and layout != CONVOLUTION:  # the inputs or the outputs are split into heads
        array = array.reshape(hidden_size, -1)
    return np.ascontiguousarray(array.T) if layout in _TRANSPOSED[kind] else array


def _stored_shape(shape: tuple[int, ...], layout: str, kind: str, hidden_size: int) -> tuple[int, ...]:
    if layout == VECTOR:
        return (math.prod(shape),)
    if len(shape) == 3 and layout != CONVOLUTION:
        shape = (hidden_size, math.prod(shape) // hidden_size)
    return shape[::-1] if layout in _TRANSPOSED[kind] else shape


def to_files(
    params: Mapping[str, np.ndarray], table: Iterable[Entry], kind: str, config: EncoderConfig
) -> dict[str, np.ndarray]:
    """Returns the arrays to store, by their names in a kind of file; those not in the table are skipped."""
    by_name: dict[str, dict[int, np.ndarray]] = {}
    for one in table:
        for ours, names, stacked in one.tensors(kind, config):
            if ours in params:
                arrays = params[ours] if stacked else [params[ours]]
                for name, array in zip(names, arrays, strict=True):
                    array = _stored(np.asarray(array), one.layout, kind, config.hidden_size)
                    by_name.setdefault(name, {})[one.part[0]] = array
    return {
        name: np.concatenate([some[i] for i in sorted(some)]) if len(some) > 1 else some[0]
        for name, some in by_name.items()
    }


class FileParams(NamedTuple):
    """The result of `from_files`: the parameters of a file, and the names of its other tensors."""

    params: dict[str, np.ndarray]
    missing: list[str]  # names in the file that some layers lack although others have them
    misshapen: list[str]  # "NAME is [2, 3], expected [3, 2]"
    unknown: list[str]  # other names in the file, except of optimizer state, counters and buffers


def from_files(
    tensors: Mapping[str, np.ndarray],
    table: Iterable[Entry],
    expected: Mapping[str, Parameter],
    kind: str,
    config: EncoderConfig,
    not_params: re.Pattern[str],
) -> FileParams:
    """Returns the parameters of a file by their names in bert_jax, with its missing and unknown tensors.

    `tensors` are any objects with a shape that `numpy.asarray` accepts, `expected` are all parameters of the
    family for `config`, and `not_params` matches the names of tensors that are not parameters.
    """
    found = FileParams({}, [], [], [])
    used = set()
    parameters = ((one, *each) for one in table for each in one.tensors(kind, config) if each[0] in expected)
    for one, ours, names, stacked in parameters:
        layout, (index, count) = one.layout, one.part
        shape = expected[ours].shape[1:] if stacked else expected[ours].shape
        present = [name for name in names if name in tensors]
        used.update(present)
        if len(present) < len(names):
            absent = [name for name in names if present and name not in tensors]
            found.missing.extend(name for name in absent if name not in found.missing)
            continue
        rows, *others = _stored_shape(shape, layout, kind, config.hidden_size)
        stored_shape = (rows * count, *others)
        wrong = [name for name in names if tuple(tensors[name].shape) != stored_shape]
        if wrong:
            problems = [
                f"{name} is {list(tensors[name].shape)}, expected {list(stored_shape)}" for name in wrong
            ]
            # Several parameters may be parts of one tensor.
            found.misshapen.extend(one for one in problems if one not in found.misshapen)
            continue
        transposed = layout in _TRANSPOSED[kind]
        arrays = [np.asarray(tensors[name])[index * rows : (index + 1) * rows] for name in names]
        arrays = [(array.T if transposed else array).reshape(shape) for array in arrays]
        found.params[ours] = np.stack(arrays) if stacked else np.ascontiguousarray(arrays[0])
    others = (name for name in tensors if name not in used)
    found.unknown.extend(name for name in others if not not_params.fullmatch(name))
    return found
