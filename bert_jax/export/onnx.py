"""ONNX: the graph of a model in float32, and ONNX Runtime to run it.

The graph has the structure of the Flax modules in `bert_jax.models`, and the names of inputs and outputs that
transformers' exports have. Rows may be padded on the right; `attention_mask` is 0 there. (jax2onnx 0.17 could
make the graph, but requires orbax-checkpoint before 0.11.37, and bert_jax requires 0.12.)
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.convert import Model
from bert_jax.errors import UserError, optional_imports
from bert_jax.models import positions
from bert_jax.models.heads.structures import LEAST_LENGTH
from bert_jax.models.parameters import LayerSlice, scans

with optional_imports("onnx"):
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
FILE = "onnx/model.onnx"  # as on the Hugging Face hub
OPSET = 20  # the first with Gelu
_IR = 9  # of ONNX 1.15, which has this opset
_MOST_BYTES = 2_000_000_000  # of weights inside the file; a protocol buffer has at most 2 GiB

BATCH, LENGTH = "batch", "sequence"
WORD_EMBEDDINGS = "word_embeddings"  # the name of their table
_NEVER = -1e9  # added to the logits of tokens that are not attended to

Value = str  # the name of a value of the graph


def write(model: Model, path: str) -> None:
    """Writes the graph of a model in float32."""
    ModelGraph(model).graph.save(path)


class Session:
    """A graph in a file, run by ONNX Runtime on the CPU; a call returns its outputs by name."""

    def __init__(self, path: str):
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._outputs = [one.name for one in self._session.get_outputs()]

    def __call__(self, *arrays: np.ndarray) -> Mapping[str, np.ndarray]:
        """Returns the outputs for integers `INPUTS` [B, L]; a graph may lack the last input."""
        given = dict(zip(INPUTS, arrays, strict=True))
        feed = {name: given[name].astype(np.int64) for name in self._inputs}
        return dict(zip(self._outputs, self._session.run(self._outputs, feed), strict=True))


class Graph:
    """Collects the operations and the constants of a named graph."""

    def __init__(self, name: str):
        self._name = name
        self._nodes: list[Any] = []
        self._constants: dict[Any, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str) -> Value:
        """Adds an int64 input [batch, sequence] of any size."""
        self._inputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [BATCH, LENGTH]))
        return name

    def output(self, value: Value, name: str, axes: Sequence[str | int]) -> None:
        """Makes a value a float32 output of the graph."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(axes)))

    def constant(self, array: Any, name: str = "") -> Value:
        """Returns a constant; equal small ones, and arrays with equal names, are stored once."""
        array = np.asarray(array, order="C")
        key = name or (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            name = name or f"constant_{len(self._constants)}"
            self._constants[key] = numpy_helper.from_array(array, name)
        return self._constants[key].name

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
        """Writes the graph to a file; weights that are too large for it go to a file next to it."""
        weights = list(self._constants.values())
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, weights)
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, producer_name="bert_jax", ir_version=_IR)
        beside = sum(len(one.raw_data) for one in weights) > _MOST_BYTES
        name = f"{os.path.basename(path)}_data" if beside else None
        onnx.save_model(model, path, save_as_external_data=beside, location=name)
        onnx.checker.check_model(path)


class ModelGraph:
    """Builds the graph of a model, the attribute `graph`; UserError if the model has no export."""

    def __init__(self, model: Model):
        self._model, self._config = model, model.config
        for name in ("attention_adapter", "output_adapter", "causal", "position"):
            if (value := getattr(self._config, name)) and value not in ("learned", "rotary", "alibi", "none"):
                raise UserError(f"--to=onnx does not support {name}={value}; use --to=stablehlo")
        self.graph = Graph(model.family.name)
        self._ids = self.graph.input("input_ids")
        self._mask = self.graph.input("attention_mask")
        self._types = ""
        if self._config.type_vocab_size > 1:
            self._types = self.graph.input("token_type_ids")
        shape = self.graph("Shape", self._ids)
        length = self.graph("Gather", shape, self.graph.constant(np.int64(1)))
        zero, one = (self.graph.constant(np.int64(value)) for value in (0, 1))
        self._places = self.graph("Range", zero, length, one)  # [L]
        self._real = self.graph("Cast", self._mask, to=1)  # float32 [B, L]
        hidden = self._encoder()
        heads: dict[str, Callable[[Value], None]] = {
            "none": self._no_head,
            "masked_lm": self._masked_lm,
            "pretraining": self._masked_lm,
            "replaced_tokens": self._replaced_tokens,
            "question_answering": self._question_answering,
        }
        heads.get(model.head, self._classifier)(hidden)

    # Parts of layers

    def _weight(self, name: str, layer: int | None = None) -> np.ndarray:
        array = self._model.params[name]
        return np.asarray(array if layer is None else array[layer], np.float32)

    def _constant(self, name: str, layer: int | None, shape: tuple[int, ...] = (-1,)) -> Value:
        place = "" if layer is None else f"/{layer}"
        return self.graph.constant(self._weight(name, layer).reshape(shape), f"{name}{place}")

    def _dense(self, x: Value, name: str, inputs: int = 1, layer: int | None = None) -> Value:
        """Returns x W + b; the first `inputs` dimensions of the kernel are one axis of x."""
        rows = math.prod(self._weight(f"{name}/kernel", layer).shape[:inputs])
        x = self.graph("MatMul", x, self._constant(f"{name}/kernel", layer, (rows, -1)))
        if f"{name}/bias" not in self._model.params:
            return x
        return self.graph("Add", x, self._constant(f"{name}/bias", layer))

    def _norm(self, x: Value, name: str, layer: int | None = None) -> Value:
        has_bias = f"{name}/bias" in self._model.params
        scale = self._constant(f"{name}/scale", layer)
        biases = [self._constant(f"{name}/bias", layer)] if has_bias else []
        epsilon = self._config.layer_norm_eps
        if self._config.norm == "layernorm":
            return self.graph("LayerNormalization", x, scale, *biases, axis=-1, epsilon=epsilon)
        square = self.graph("ReduceMean", self.graph("Mul", x, x), self.graph.ints(-1), keepdims=1)
        root = self.graph("Sqrt", self.graph("Add", square, self.graph.floats(epsilon)))
        return self._add(self.graph("Mul", self.graph("Div", x, root), scale), *biases)

    def _add(self, *values: Value) -> Value:
        return functools.reduce(functools.partial(self.graph, "Add"), values)

    def _activate(self, x: Value, name: str) -> Value:
        if name in ("gelu", "gelu_tanh"):
            return self.graph("Gelu", x, approximate="tanh" if name == "gelu_tanh" else "none")
        if name == "silu":
            return self.graph("Mul", x, self.graph("Sigmoid", x))
        return self.graph({"relu": "Relu", "tanh": "Tanh"}[name], x)

    # The encoder

    def _encoder(self) -> Value:
        """Returns the hidden states of the last layer, [B, L, H]."""
        config, embeddings = self._config, "encoder/embeddings"
        words = self.graph.constant(self._weight(f"{embeddings}/word_embeddings"), WORD_EMBEDDINGS)
        x = self.graph("Gather", words, self._ids)
        if config.type_vocab_size:
            types = self._weight(f"{embeddings}/token_type_embeddings")
            found = self.graph.constant(types if self._types else types[0], "token_type_embeddings")
            x = self._add(x, self.graph("Gather", found, self._types) if self._types else found)
        if config.position == "learned":
            table = self._weight(f"{embeddings}/position_embeddings")[config.position_offset :]
            constant = self.graph.constant(table, "position_embeddings")
            x = self._add(x, self.graph("Gather", constant, self._places))
        if config.embedding_norm:
            x = self._norm(x, f"{embeddings}/layer_norm")
        if config.projects_embeddings:
            x = self._dense(x, f"{embeddings}/projection")
        padding = self.graph("Sub", self.graph.floats(1.0), self._real)
        mask = self.graph("Mul", padding, self.graph.floats(_NEVER))
        mask = self.graph("Unsqueeze", mask, self.graph.ints(1, 2))  # [B, 1, 1, L]
        biases: dict[int, list[Value]] = {}
        tables: dict[float, tuple[Value, Value]] = {}
        for slices in scans(config):
            for repeat in range(len(slices[0].numbers)):
                for spec in slices:
                    if spec.window not in biases:
                        biases[spec.window] = [mask, *self._biases(spec)]
                    if config.position == "rotary" and spec.theta not in tables:
                        tables[spec.theta] = self._rotary_tables(spec.theta)
                    path = f"encoder/layers/{spec.path}"
                    place = None if spec.shared else repeat
                    x = self._layer(x, path, place, spec, biases[spec.window], tables.get(spec.theta))
        return self._norm(x, "encoder/final_norm") if config.final_norm else x

    def _biases(self, spec: LayerSlice) -> list[Value]:
        """Returns the biases of the attention logits by position, [1, 1, L, L] or [1, N, L, L]."""
        config, found = self._config, []
        if not (spec.window or config.position == "alibi"):
            return []
        places = self.graph("Cast", self._places, to=1)
        column, row = (self.graph("Unsqueeze", places, self.graph.ints(axis)) for axis in (1, 0))
        distance = self.graph("Abs", self.graph("Sub", row, column))
        if spec.window:
            far = self.graph("Greater", distance, self.graph.floats(float(spec.window)))
            found.append(self.graph("Where", far, self.graph.floats(_NEVER), self.graph.floats(0.0)))
        if config.position == "alibi":
            slopes = -positions.alibi_slopes(config.num_attention_heads)
            found.append(self.graph("Mul", distance, self.graph.constant(slopes[:, None, None])))
        return [self._add(*found)]

    def _rotary_tables(self, theta: float) -> tuple[Value, Value]:
        """Returns the cosines and sines of the angles of rotary positions, [L, D / 2]."""
        ids = np.arange(self._config.max_seq_length)[None]
        angles = positions.rotary_angles(self._config, ids)[theta]
        tables = [np.asarray(x, np.float32)[0, :, 0] for x in angles]
        cosine, sine = (
            self.graph("Gather", self.graph.constant(table, f"{kind}_{theta:g}"), self._places)
            for kind, table in zip(("cosines", "sines"), tables, strict=True)
        )
        return cosine, sine

    def _layer(
        self,
        x: Value,
        path: str,
        layer: int | None,
        spec: LayerSlice,
        biases: Sequence[Value],
        tables: tuple[Value, Value] | None,
    ) -> Value:
        attention, feed_forward = f"{path}/attention_norm", f"{path}/output_norm"
        if self._config.norm_placement == "post":
            x = self._norm(self._add(x, self._attention(x, path, layer, biases, tables)), attention, layer)
            return self._norm(self._add(x, self._feed_forward(x, path, layer)), feed_forward, layer)
        normed = self._norm(x, attention, layer) if spec.attention_norm else x
        x = self._add(x, self._attention(normed, path, layer, biases, tables))
        return self._add(x, self._feed_forward(self._norm(x, feed_forward, layer), path, layer))

    def _attention(self, x, path, layer, biases, tables):
        config = self._config
        split = self.graph.ints(0, 0, config.num_attention_heads, config.head_dim)
        query, key, value = (
            self.graph("Reshape", self._dense(x, f"{path}/{name}", layer=layer), split)
            for name in ("query", "key", "value")
        )
        query, key, value = (self.graph("Transpose", x, perm=(0, 2, 1, 3)) for x in (query, key, value))
        if tables:
            query, key = (self._apply_rotary(x, *tables) for x in (query, key))
        key = self.graph("Transpose", key, perm=(0, 1, 3, 2))
        logits = self.graph(
            "Div", self.graph("MatMul", query, key), self.graph.floats(math.sqrt(config.head_dim))
        )
        weights = self.graph("Softmax", self._add(logits, *biases), axis=-1)
        out = self.graph("Transpose", self.graph("MatMul", weights, value), perm=(0, 2, 1, 3))
        out = self.graph("Reshape", out, self.graph.ints(0, 0, config.hidden_size))
        return self._dense(out, f"{path}/attention_output", inputs=2, layer=layer)

    def _apply_rotary(self, x, cosine, sine):
        half = self._config.head_dim // 2
        first, second = self.graph.several("Split", 2, x, self.graph.ints(half, half), axis=-1)
        rotated = (
            self.graph("Sub", self.graph("Mul", first, cosine), self.graph("Mul", second, sine)),
            self.graph("Add", self.graph("Mul", second, cosine), self.graph("Mul", first, sine)),
        )
        return self.graph("Concat", *rotated, axis=-1)

    def _feed_forward(self, x, path, layer):
        config = self._config
        x = self._dense(x, f"{path}/intermediate", layer=layer)
        if config.feed_forward == "glu":
            sizes = self.graph.ints(config.intermediate_size, config.intermediate_size)
            first, second = self.graph.several("Split", 2, x, sizes, axis=-1)
            x = self.graph("Mul", self._activate(first, config.hidden_act), second)
        else:
            x = self._activate(x, config.hidden_act)
        return self._dense(x, f"{path}/output", layer=layer)

    # Heads

    def _no_head(self, hidden: Value) -> None:
        width = self._config.hidden_size
        self.graph.output(hidden, "last_hidden_state", (BATCH, LENGTH, width))
        if "pooler" in self._model.groups:
            self.graph.output(self._pooled(self._pool(hidden, "cls")), "pooler_output", (BATCH, width))
        sentence = self._model.sentence
        if sentence is None:
            return
        vector = self._pool(hidden, sentence.pooling)
        if sentence.normalize:
            length = self.graph("ReduceL2", vector, self.graph.ints(-1), keepdims=1)
            vector = self.graph("Div", vector, self.graph("Max", length, self.graph.floats(LEAST_LENGTH)))
        self.graph.output(vector, "sentence_embedding", (BATCH, width))

    def _pooled(self, x: Value) -> Value:
        return self._activate(self._dense(x, "pooler/dense"), "tanh")

    def _masked_lm(self, hidden: Value) -> None:
        head, x = self._model.family.masked_lm, hidden
        if head.transform:
            x = self._activate(self._dense(x, "mlm/transform"), head.activation or self._config.hidden_act)
        if head.norm:
            x = self._norm(x, "mlm/transform_norm")
        if head.tied:
            words = self.graph("Transpose", WORD_EMBEDDINGS, perm=(1, 0))
            x = self.graph("MatMul", x, words)
            if head.decoder_bias:
                x = self._add(x, self.graph.constant(self._weight("mlm/bias"), "mlm/bias"))
        else:
            x = self._dense(x, "mlm/decoder")
        self.graph.output(x, "logits", (BATCH, LENGTH, self._config.vocab_size))
        if "nsp" in self._model.groups:
            logits = self._dense(self._pooled(self._pool(hidden, "cls")), "nsp")
            self.graph.output(logits, "seq_relationship_logits", (BATCH, 2))

    def _replaced_tokens(self, hidden: Value) -> None:
        x = self._activate(self._dense(hidden, "discriminator/dense"), self._config.hidden_act)
        logits = self.graph("Squeeze", self._dense(x, "discriminator/out"), self.graph.ints(-1))
        self.graph.output(logits, "logits", (BATCH, LENGTH))

    def _question_answering(self, hidden: Value) -> None:
        both = self._classify(hidden)
        ends = self.graph.several("Split", 2, both, self.graph.ints(1, 1), axis=-1)
        for value, name in zip(ends, ("start_logits", "end_logits"), strict=True):
            self.graph.output(self.graph("Squeeze", value, self.graph.ints(-1)), name, (BATCH, LENGTH))

    def _classifier(self, hidden: Value) -> None:
        classes = self._model.classes or 1
        axes = (BATCH, LENGTH) if self._model.head == "token_classification" else (BATCH,)
        self.graph.output(self._classify(hidden), "logits", (*axes, classes))

    def _classify(self, hidden: Value) -> Value:
        """Returns the outputs of the classification head; see `AssembledModel.classify`."""
        head, x = self._model.family.classifiers[self._model.head], hidden
        if (pooling := head.pooling_of(self._config)) != "none":
            x = self._pool(x, pooling)
        if head.dense == "pooler":
            x = self._pooled(x)
        elif head.dense == "head":
            x = self._activate(self._dense(x, "head/dense"), head.activation)
            x = self._norm(x, "head/norm") if head.norm else x
        return self._dense(x, head.name)

    def _pool(self, hidden: Value, pooling: str) -> Value:
        """Returns one vector for each row, [B, H]."""
        if pooling == "cls":
            return self.graph("Gather", hidden, self.graph.constant(np.int64(0)), axis=1)
        axis = self.graph.ints(1)
        real = self.graph("Unsqueeze", self._real, self.graph.ints(2))
        count = self.graph("ReduceSum", self._real, axis, keepdims=1)
        if pooling == "max":
            present = self.graph("Greater", real, self.graph.floats(0.0))
            lowest = self.graph.floats(float(np.finfo(np.float32).min))
            return self.graph("ReduceMax", self.graph("Where", present, hidden, lowest), axis, keepdims=0)
        if pooling == "mean":
            total = self.graph("ReduceSum", self.graph("Mul", hidden, real), axis, keepdims=0)
            return self.graph("Div", total, self.graph("Max", count, self.graph.floats(1.0)))
        last = self.graph("Sub", count, self.graph.floats(1.0))
        chosen = self.graph("Equal", self.graph("Cast", self._places, to=1), last)  # [B, L]
        chosen = self.graph("Unsqueeze", self.graph("Cast", chosen, to=1), self.graph.ints(2))
        return self.graph("ReduceSum", self.graph("Mul", hidden, chosen), axis, keepdims=0)
