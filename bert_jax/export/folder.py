"""Writes a model for ONNX Runtime into a folder, in float32 or with int8 weights, and verifies it there."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import numpy as np

from bert_jax.convert import Model, parity
from bert_jax.convert.formats import huggingface_export
from bert_jax.errors import UserError, optional_imports
from bert_jax.export.onnx_model import ModelGraph
from bert_jax.io import files

with optional_imports("onnx"):
    import onnxruntime
    from onnxruntime import quantization

FILE, QUANTIZED = "model.onnx", "model_quantized.onnx"
SUBFOLDER = "onnx"  # where the Hugging Face hub and sentence-transformers look for it
TOLERANCE = 1e-4  # relative to the largest output or to 1, whichever is larger

_OUTPUTS = {  # names of the outputs of `AssembledModel` by those of the graph
    "last_hidden_state": "hidden",
    "pooler_output": "pooled",
    "seq_relationship_logits": "nsp",
}


@dataclasses.dataclass(frozen=True)
class Written:
    """A file of an export.

    Attributes:
        path: the file.
        size: its bytes, with those of weights beside it.
        difference: the largest difference of its outputs from those of the model for random inputs, relative
            to the largest output or to 1.
    """

    path: str
    size: int
    difference: float


def write(
    model: Model,
    folder: str,
    *,
    quantize: bool = False,
    card: str = "",
    log: Callable[[str], None] = lambda line: None,
) -> list[Written]:
    """Writes the graph of a model and the files that describe it, and runs it in ONNX Runtime.

    Args:
        model: the model.
        folder: an existing directory.
        quantize: whether to write it a second time with matrices of int8, which are multiplied by activations
            that are quantized as they come (dynamic quantization).
        card: the text of README.md.
        log: called with one line for each file.

    Raises:
        UserError: the model has no export, or the outputs of the float32 graph differ from its own.
    """
    huggingface_export.write_description(model, folder, card)
    directory = os.path.join(folder, SUBFOLDER)
    files.make_directory(directory)
    path = os.path.join(directory, FILE)
    ModelGraph(model).graph.save(path)
    written = [_check(model, path)]
    if not written[0].difference <= TOLERANCE:
        raise UserError(
            f"{model.source}: the outputs in ONNX Runtime differ by {written[0].difference:.1e}, more than "
            f"{TOLERANCE:g}; the export is not to be trusted, and nothing is kept"
        )
    if quantize:
        smaller = os.path.join(directory, QUANTIZED)
        quantization.quantize_dynamic(
            path,
            smaller,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            op_types_to_quantize=["MatMul", "Gather"],
            extra_options={"MatMulConstBOnly": True},
        )
        written.append(_check(model, smaller))
    for one in written:
        name = os.path.relpath(one.path, folder)
        log(f"{name}: {one.size / 1e6:,.1f} MB; its outputs differ by {one.difference:.1e} in ONNX Runtime")
    return written


def _check(model: Model, path: str) -> Written:
    """Returns a file with the difference of its outputs from those of the model."""
    size = sum(
        os.path.getsize(os.path.join(os.path.dirname(path), name))
        for name in os.listdir(os.path.dirname(path))
        if name.startswith(os.path.basename(path))
    )
    inputs = parity.random_inputs(model.config)
    expected = expected_outputs(model)
    found = run(path, inputs["input_ids"], inputs["token_type_ids"], inputs["mask"])
    found = parity.without_padding(found, inputs["mask"])
    differences = [
        float(np.max(np.abs(found[name] - array)) / max(1.0, np.max(np.abs(array))))
        for name, array in expected.items()
    ]
    return Written(path, size, max(differences))


def expected_outputs(model: Model) -> dict[str, np.ndarray]:
    """Returns what the graph of a model computes for `parity.random_inputs`, without padding."""
    found = parity.flax_outputs(model)
    if model.head == "question_answering":
        return {"start_logits": found["qa"][..., 0], "end_logits": found["qa"][..., 1]}
    if model.head == "none":
        return {name: found[own] for name, own in _OUTPUTS.items() if own in found}
    logits = {"masked_lm": "mlm", "pretraining": "mlm", "replaced_tokens": "discriminator"}
    found["logits"] = found[logits.get(model.head, "classifier")]
    return {"logits": found["logits"]} | ({"seq_relationship_logits": found["nsp"]} if "nsp" in found else {})


def run(path: str, ids: np.ndarray, types: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the outputs of a graph by name.

    Args:
        path: the file of the graph.
        ids: integers [B, L].
        types: token types, integers [B, L].
        mask: integers [B, L], 0 at padding.
    """
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    feed = {one.name: given[one.name].astype(np.int64) for one in session.get_inputs()}
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))
