"""The one table of names: every parameter here, in Hugging Face's BERT and in google-research/bert's.

Both directions of every conversion read it, so a name stands in one place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.models.config import EncoderConfig

HUGGINGFACE, TENSORFLOW = "huggingface", "tensorflow"

# How a parameter lies in the files; here a kernel is [inputs..., outputs...].
_VECTOR = "vector"  # [N] in both
_TABLE = "table"  # [rows, H] in both
_DENSE = "dense"  # [inputs, outputs] in TensorFlow, transposed in Hugging Face
_HEAD = "head"  # transposed in both: google-research/bert multiplies these from the other side


class Entry(NamedTuple):
    """One parameter. In a layer's names, `{layer}` is its number, and here it is the leading axis."""

    ours: str
    huggingface: str
    tensorflow: str
    layout: str

    def name(self, kind: str, layer: int | None = None) -> str:
        name = self.huggingface if kind == HUGGINGFACE else self.tensorflow
        return name if layer is None else name.format(layer=layer)

    @property
    def layered(self) -> bool:
        return "{layer}" in self.huggingface


def _dense(ours: str, huggingface: str, tensorflow: str) -> list[Entry]:
    return [
        Entry(f"{ours}/kernel", f"{huggingface}.weight", f"{tensorflow}/kernel", _DENSE),
        Entry(f"{ours}/bias", f"{huggingface}.bias", f"{tensorflow}/bias", _VECTOR),
    ]


def _norm(ours: str, huggingface: str, tensorflow: str) -> list[Entry]:
    return [
        Entry(f"{ours}/scale", f"{huggingface}.weight", f"{tensorflow}/gamma", _VECTOR),
        Entry(f"{ours}/bias", f"{huggingface}.bias", f"{tensorflow}/beta", _VECTOR),
    ]


def _head(ours: str, huggingface: str, tensorflow: str) -> list[Entry]:
    return [
        Entry(f"{ours}/kernel", f"{huggingface}.weight", f"{tensorflow}output_weights", _HEAD),
        Entry(f"{ours}/bias", f"{huggingface}.bias", f"{tensorflow}output_bias", _VECTOR),
    ]


_EMBEDDINGS = ("encoder/embeddings", "bert.embeddings", "bert/embeddings")
_LAYER = ("encoder/layers/stack/layer", "bert.encoder.layer.{layer}", "bert/encoder/layer_{layer}")


def _in(parents: tuple[str, str, str], make, ours: str, huggingface: str, tensorflow: str) -> list[Entry]:
    return make(f"{parents[0]}/{ours}", f"{parents[1]}.{huggingface}", f"{parents[2]}/{tensorflow}")


TABLE: tuple[Entry, ...] = (
    *(
        Entry(
            f"{_EMBEDDINGS[0]}/{name}", f"{_EMBEDDINGS[1]}.{name}.weight", f"{_EMBEDDINGS[2]}/{name}", _TABLE
        )
        for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
    ),
    *_in(_EMBEDDINGS, _norm, "layer_norm", "LayerNorm", "LayerNorm"),
    *_in(_LAYER, _dense, "query", "attention.self.query", "attention/self/query"),
    *_in(_LAYER, _dense, "key", "attention.self.key", "attention/self/key"),
    *_in(_LAYER, _dense, "value", "attention.self.value", "attention/self/value"),
    *_in(_LAYER, _dense, "attention_output", "attention.output.dense", "attention/output/dense"),
    *_in(_LAYER, _norm, "attention_norm", "attention.output.LayerNorm", "attention/output/LayerNorm"),
    *_in(_LAYER, _dense, "intermediate", "intermediate.dense", "intermediate/dense"),
    *_in(_LAYER, _dense, "output", "output.dense", "output/dense"),
    *_in(_LAYER, _norm, "output_norm", "output.LayerNorm", "output/LayerNorm"),
    *_dense("pooler/dense", "bert.pooler.dense", "bert/pooler/dense"),
    *_dense("mlm/transform", "cls.predictions.transform.dense", "cls/predictions/transform/dense"),
    *_norm(
        "mlm/transform_norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm"
    ),
    Entry("mlm/bias", "cls.predictions.bias", "cls/predictions/output_bias", _VECTOR),
    *_head("nsp", "cls.seq_relationship", "cls/seq_relationship/"),
    *_head("classifier", "classifier", ""),
    *_head("qa", "qa_outputs", "cls/squad/"),
)

# What lies beside the parameters and is none: optimizer state, counters, buffers, and Hugging Face's second
# names of tied weights, which `huggingface.read` compares with the first.
_BESIDE = {
    HUGGINGFACE: re.compile(r"bert\.embeddings\.(position_ids|token_type_ids)|cls\.predictions\.decoder\..*"),
    TENSORFLOW: re.compile(
        r".*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_1)?|global_step|.*loss_scale|.*(good|bad)_steps"
    ),
}


def shape(entry: Entry, config: EncoderConfig, classes: int = 2) -> tuple[int, ...]:
    """The shape of a parameter here, without the axis of layers.

    Args:
        classes: of `classifier`; the other heads have two outputs.
    """
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = (config.num_attention_heads, config.head_dim)
    outputs = classes if entry.ours.startswith("classifier/") else 2
    *_, module, leaf = entry.ours.split("/")
    if entry.layout == _TABLE:
        rows = {
            "word_embeddings": config.vocab_size,
            "token_type_embeddings": config.type_vocab_size,
            "position_embeddings": config.max_position_embeddings,
        }
        return (rows[leaf], hidden)
    if entry.layout == _HEAD:
        return (hidden, outputs)
    sizes = {
        "query": ((hidden,), heads),
        "key": ((hidden,), heads),
        "value": ((hidden,), heads),
        "attention_output": (heads, (hidden,)),
        "intermediate": ((hidden,), (inner,)),
        "output": ((inner,), (hidden,)),
        "mlm": ((), (config.vocab_size,)),
        "nsp": ((), (outputs,)),
        "classifier": ((), (outputs,)),
        "qa": ((), (outputs,)),
    }
    inputs, out = sizes.get(module, ((hidden,), (hidden,)))
    return (*inputs, *out) if leaf == "kernel" else tuple(out)


def shapes(config: EncoderConfig, groups: Iterable[str], classes: int = 2) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the parameters whose name begins with one of `groups`, such as "encoder" or "mlm"."""
    groups = set(groups)
    return {
        entry.ours: ((config.num_hidden_layers,) if entry.layered else ()) + shape(entry, config, classes)
        for entry in TABLE
        if entry.ours.split("/")[0] in groups
    }


def _stored(array: np.ndarray, layout: str, kind: str, hidden_size: int) -> np.ndarray:
    """One parameter as it lies in a file."""
    if layout == _VECTOR:
        return array.reshape(-1)
    if layout == _TABLE:
        return array
    if array.ndim == 3:  # split into heads, on one side or the other
        array = array.reshape(hidden_size, -1)
    transposed = layout == _HEAD or kind == HUGGINGFACE
    return np.ascontiguousarray(array.T) if transposed else array


def _stored_shape(shape: tuple[int, ...], layout: str, kind: str, hidden_size: int) -> tuple[int, ...]:
    """The shape that `_stored` gives an array of a shape, which may be larger than any memory."""
    if layout == _VECTOR:
        return (math.prod(shape),)
    if len(shape) == 3:
        shape = (hidden_size, math.prod(shape) // hidden_size)
    transposed = layout == _HEAD or (layout == _DENSE and kind == HUGGINGFACE)
    return shape[::-1] if transposed else shape


def to_files(params: Mapping[str, np.ndarray], config: EncoderConfig, kind: str) -> dict[str, np.ndarray]:
    """{name in the file: array} of parameters by their names here.

    Args:
        kind: HUGGINGFACE or TENSORFLOW.
    """
    tensors = {}
    for entry in TABLE:
        if entry.ours not in params:
            continue
        array = np.asarray(params[entry.ours])
        if not entry.layered:
            tensors[entry.name(kind)] = _stored(array, entry.layout, kind, config.hidden_size)
            continue
        for layer in range(config.num_hidden_layers):
            name = entry.name(kind, layer)
            tensors[name] = _stored(array[layer], entry.layout, kind, config.hidden_size)
    return tensors


class Found(NamedTuple):
    """What `from_files` made of the tensors of a file."""

    params: dict[str, np.ndarray]
    missing: list[str]  # names in the file: layers that lack what others have
    misshapen: list[str]  # "NAME is [2, 3], expected [3, 2]"
    unknown: list[str]  # names in the file that no row of the table has
    beside: list[str]  # names of what is no parameter: optimizer state, counters, buffers


def from_files(tensors: Mapping[str, np.ndarray], config: EncoderConfig, kind: str) -> Found:
    """Parameters by their names here, of tensors by their names in a file.

    Args:
        tensors: their values may be anything with a shape that `numpy.asarray` takes.
    """
    found = Found({}, [], [], [], [])
    used = set()
    classifier = next(entry for entry in TABLE if entry.ours == "classifier/bias").name(kind)
    classes = tensors[classifier].shape[0] if classifier in tensors else 2
    for entry in TABLE:
        # A file has no more layers than tensors, whatever its configuration says.
        layers = range(min(config.num_hidden_layers, len(tensors) + 1)) if entry.layered else [None]
        names = [entry.name(kind, layer) for layer in layers]
        present = [name for name in names if name in tensors]
        used.update(present)
        if len(present) < len(names):
            found.missing.extend(name for name in names if present and name not in tensors)
            continue
        expected = shape(entry, config, classes)
        stored_shape = _stored_shape(expected, entry.layout, kind, config.hidden_size)
        wrong = [name for name in names if tuple(tensors[name].shape) != stored_shape]
        if wrong:
            found.misshapen.extend(
                f"{name} is {list(tensors[name].shape)}, expected {list(stored_shape)}" for name in wrong
            )
            continue
        transposed = entry.layout == _HEAD or (entry.layout == _DENSE and kind == HUGGINGFACE)
        arrays = [np.asarray(tensors[name]) for name in names]
        arrays = [(array.T if transposed else array).reshape(expected) for array in arrays]
        found.params[entry.ours] = np.stack(arrays) if entry.layered else np.ascontiguousarray(arrays[0])
    for name in tensors:
        if name not in used:
            (found.beside if _BESIDE[kind].fullmatch(name) else found.unknown).append(name)
    return found
