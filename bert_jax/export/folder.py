"""Writes a folder with an exported model, and the files that describe it; each export is run and compared."""

from __future__ import annotations

import os
from collections.abc import Callable

from bert_jax.convert import Model
from bert_jax.convert.formats import huggingface_export
from bert_jax.errors import UserError
from bert_jax.export import onnx, stablehlo
from bert_jax.export.outputs import INPUTS, TOLERANCE, difference
from bert_jax.io import files

ONNX, STABLEHLO = FORMATS = ("onnx", "stablehlo")

# By format: the name of the library on the Hugging Face hub, and lines that import it and run `rows`.
_USAGE = {
    ONNX: (
        "onnx",
        ["import onnxruntime"],
        [
            f'session = onnxruntime.InferenceSession("DIR/{onnx.FILE}")',
            'inputs = {one.name: rows[one.name].astype("int64") for one in session.get_inputs()}',
            "names = [one.name for one in session.get_outputs()]",
            "outputs = dict(zip(names, session.run(names, inputs)))",
        ],
    ),
    STABLEHLO: (
        "jax",
        ["from jax import export"],
        [
            f'run = export.deserialize(bytearray(open("DIR/{stablehlo.FILE}", "rb").read()))',
            f"names = {list(INPUTS)}",
            'outputs = run.call(*(rows[name].astype("int32") for name in names))',
        ],
    ),
}


def write(
    model: Model, folder: str, to: str, *, quantize: bool = False, card: str = "", log: Callable[[str], None]
) -> None:
    """Writes a model into an existing directory.

    Args:
        model: the model.
        folder: the directory.
        to: one of `FORMATS`.
        quantize: whether to write an ONNX graph with int8 weights, too.
        card: the text of README.md.
        log: called with one line for each export: its size, and how far its outputs are from the model's.

    Raises:
        UserError: the model has no such export, or the outputs in float32 differ from its own.
    """
    huggingface_export.write_description(model, folder, card, pools_any=False)
    if to == STABLEHLO:
        path = os.path.join(folder, stablehlo.FILE)
        stablehlo.write(model, path)
        _check(model, path, stablehlo.Session(path), TOLERANCE, log)
        return
    path, smaller = (os.path.join(folder, name) for name in (onnx.FILE, onnx.QUANTIZED))
    files.make_directory(os.path.dirname(path))
    onnx.write(model, path)
    _check(model, path, onnx.Session(path), TOLERANCE, log)
    if quantize:
        onnx.quantize(path, smaller)
        _check(model, smaller, onnx.Session(smaller), float("inf"), log)


def usage(model: Model, to: str) -> tuple[str, list[str]]:
    """Returns the name of the library that runs an export, and lines of Python that do so.

    Args:
        model: the model.
        to: one of `FORMATS`.
    """
    library, imports, lines = _USAGE[to]
    rows = ["rows = ...  # NumPy arrays [batch, sequence] by name: input_ids, attention_mask, token_type_ids"]
    if model.tokenizer is not None:
        imports = [*imports, "from transformers import AutoTokenizer"]
        rows = [
            'tokenizer = AutoTokenizer.from_pretrained("DIR")',
            'texts = ["One text.", "Another one."]',
            "options = dict(padding=True, truncation=True, return_token_type_ids=True)",
            'rows = tokenizer(texts, return_tensors="np", **options)',
        ]
    return library, [*imports, "", *rows, *lines]


def _check(model: Model, path: str, run: Callable, tolerance: float, log: Callable[[str], None]) -> None:
    found = difference(model, run)
    name = os.path.basename(path)
    if not found <= tolerance:
        raise UserError(
            f"{model.source}: the outputs of {name} differ by {found:.1e}, more than {tolerance:g}; the "
            "export is not to be trusted, and nothing is kept"
        )
    directory = os.path.dirname(path)
    size = sum(
        os.path.getsize(os.path.join(directory, one)) for one in os.listdir(directory) if one.startswith(name)
    )
    log(f"{name}: {size / 1e6:,.1f} MB; its outputs for random rows differ from the model's by {found:.1e}")
