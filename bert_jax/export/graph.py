"""A builder of ONNX graphs: operations by name, with constants in place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.errors import optional_imports

with optional_imports("onnx"):
    import onnx
    from onnx import helper, numpy_helper

OPSET = 20  # the first with Gelu
_IR = 9  # of ONNX 1.15, which has this opset
_MOST_BYTES = 2_000_000_000  # of weights inside the file; a protocol buffer has at most 2 GiB

Value = str  # the name of a value of the graph


class Graph:
    """Collects the operations and the constants of a graph.

    Args:
        name: the name of the graph.
    """

    def __init__(self, name: str):
        self._name = name
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._known: dict[tuple[Any, ...], Value] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self.weight_bytes = 0

    def input(self, name: str, axes: Sequence[str]) -> Value:
        """Adds an int64 input with named axes of any size."""
        self._inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, list(axes)))
        return name

    def output(self, value: Value, name: str, axes: Sequence[str | int]) -> None:
        """Makes a value a float32 output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(axes)))

    def constant(self, array: Any, name: str = "") -> Value:
        """Returns a constant; equal small ones, and arrays with equal names, are stored once."""
        array = np.asarray(array, order="C")
        key = (name,) if name else (array.dtype.str, array.shape, array.tobytes())
        if key not in self._known:
            name = name or f"constant_{len(self._constants)}"
            self._constants[name] = numpy_helper.from_array(array, name)
            self.weight_bytes += array.nbytes
            self._known[key] = name
        return self._known[key]

    def floats(self, *values: float) -> Value:
        """Returns a float32 constant: a scalar for one value, otherwise a vector."""
        return self.constant(np.array(values[0] if len(values) == 1 else values, np.float32))

    def ints(self, *values: int) -> Value:
        """Returns an int64 vector."""
        return self.constant(np.array(values, np.int64))

    def __call__(self, kind: str, *inputs: Value, **attributes: Any) -> Value:
        """Returns the output of a new operation."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, count: int, *inputs: Value, **attributes: Any) -> list[Value]:
        """Returns the outputs of a new operation that has several."""
        number = len(self._nodes)
        names = [f"{kind}_{number}" if count == 1 else f"{kind}_{number}_{i}" for i in range(count)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{number}", **attributes))
        return names

    def save(self, path: str) -> None:
        """Writes the graph to a file, and weights that are too large for it to a file beside it."""
        graph = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, list(self._constants.values())
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="bert_jax", ir_version=_IR)
        beside = self.weight_bytes > _MOST_BYTES
        name = f"{os.path.basename(path)}_data" if beside else None
        onnx.save_model(model, path, save_as_external_data=beside, location=name)
        onnx.checker.check_model(path)
