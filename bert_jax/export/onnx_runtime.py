"""Writes a model for ONNX Runtime, in float32 or with int8 weights."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from bert_jax.convert import Model
from bert_jax.errors import optional_imports
from bert_jax.export.onnx_model import WORD_EMBEDDINGS, ModelGraph
from bert_jax.export.outputs import INPUTS

with optional_imports("onnx"):
    import onnx
    import onnxruntime
    from onnxruntime import quantization

FILE, QUANTIZED = "onnx/model.onnx", "onnx/model_quantized.onnx"  # as on the Hugging Face hub


def write(model: Model, path: str) -> None:
    """Writes the graph of a model in float32."""
    ModelGraph(model).graph.save(path)


def quantize(path: str, smaller: str) -> None:
    """Writes a graph anew with matrices and word embeddings of int8.

    Activations are quantized as they come (dynamic quantization), with one scale for each column of a matrix.
    The weights have seven bits: on processors without VNNI, sums of two products of eight bits would overflow
    16 bits and be cut. The tables of positions and token types are small, and stay float32.
    """
    nodes = onnx.load(path, load_external_data=False).graph.node
    tables = [node.name for node in nodes if node.op_type == "Gather" and node.input[0] != WORD_EMBEDDINGS]
    logging.getLogger().addFilter(_is_no_advice)
    try:
        quantization.quantize_dynamic(
            path,
            smaller,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=["MatMul", "Gather"],
            nodes_to_exclude=tables,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.getLogger().removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()


class Session:
    """A graph in ONNX Runtime, on the CPU; a call returns its outputs by name.

    Args:
        path: the file of the graph.
    """

    def __init__(self, path: str):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, *arrays: np.ndarray) -> Mapping[str, np.ndarray]:
        """Returns the outputs for integers `INPUTS` [B, L]; a graph may lack the last one."""
        given = dict(zip(INPUTS, arrays, strict=True))
        feed = {name: given[name].astype(np.int64) for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))
