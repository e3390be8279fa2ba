"""Writes a folder with a model as ONNX or StableHLO, which is run and compared with the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bert_jax.checkpoint.leaves import nest
from bert_jax.convert import Model, parity
from bert_jax.convert.formats import huggingface
from bert_jax.export import onnx
from bert_jax.export.onnx import INPUTS
from bert_jax.inference.embedding import pool
from bert_jax.io import atomic, files
from bert_jax.objectives.embedding.sentence import normalize

ONNX, STABLEHLO = FORMATS = ("onnx", "stablehlo")
STABLEHLO_FILE = "model.stablehlo"
PLATFORMS = ("cpu", "cuda", "tpu")  # of StableHLO
TOLERANCE = 1e-4  # of an export, relative to the largest output or to 1, whichever is larger

_LOGITS = {"masked_lm": "mlm", "pretraining": "mlm", "replaced_tokens": "discriminator"}

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
            f'run = export.deserialize(bytearray(open("DIR/{STABLEHLO_FILE}", "rb").read()))',
            f"names = {list(INPUTS)}",
            'outputs = run.call(*(rows[name].astype("int32") for name in names))',
        ],
    ),
}


def write(model: Model, folder: str, to: str, *, card: str = "", log: Callable[[str], None]) -> None:
    """Writes a model into an existing directory in one of `FORMATS`, with a card as README.md."""
    huggingface.write_description(model, folder, card, pools_any=False)
    if to == STABLEHLO:
        path = os.path.join(folder, STABLEHLO_FILE)
        write_stablehlo(model, path)
        run = load_stablehlo(path)
    else:
        path = os.path.join(folder, onnx.FILE)
        files.make_directory(os.path.dirname(path))
        onnx.write(model, path)
        run = onnx.Session(path)
    found = difference(model, run)
    directory, name = os.path.split(path)
    paths = [os.path.join(directory, one) for one in os.listdir(directory) if one.startswith(name)]
    size = sum(map(os.path.getsize, paths))  # weights of more than 2 GB are in a separate file
    log(f"{name}: {size / 1e6:,.1f} MB; its outputs for random rows differ from the model's by {found:.1e}")


def write_stablehlo(model: Model, path: str) -> None:
    """Writes the serialized function of int32 `INPUTS` [batch, sequence], of 2 tokens or more.

    Longer rows than the model has positions raise an error: all their last tokens would have the last
    position.
    """
    constraints = ["sequence >= 2", f"sequence <= {model.config.max_seq_length}", "sequence^2 >= 2*sequence"]
    shape = export.symbolic_shape("batch, sequence", constraints=constraints)
    rows = [jax.ShapeDtypeStruct(shape, jnp.int32)] * len(INPUTS)
    with jax.default_matmul_precision("highest"):
        exported = export.export(jax.jit(function(model)), platforms=PLATFORMS)(*rows)
    atomic.write_file(path, bytes(exported.serialize()))


def load_stablehlo(path: str) -> Callable[..., Mapping[str, np.ndarray]]:
    """Returns a function of integers `INPUTS` [B, L] that runs a file of `write_stablehlo`."""
    exported = export.deserialize(bytearray(files.read(path)))

    def run(*arrays):
        return jax.device_get(exported.call(*(jnp.asarray(array, jnp.int32) for array in arrays)))

    return run


def usage(model: Model, to: str) -> tuple[str, list[str]]:
    """Returns the name of the library that runs an export, and lines of Python that do so."""
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


def function(model: Model) -> Callable[..., dict[str, jax.Array]]:
    """Returns the function of int32 `INPUTS` [B, L] that computes all outputs in float32, by their names."""
    config = model.config.replace(dtype="float32", attention="xla", remat="none")
    module = model.module.clone(config=config)
    params = nest({name: np.asarray(array, np.float32) for name, array in model.params.items()})

    def compute(input_ids, attention_mask, token_type_ids):
        places = jnp.broadcast_to(jnp.arange(input_ids.shape[1]), input_ids.shape)
        found = module.apply({"params": params}, input_ids, token_type_ids, places, attention_mask)
        if model.head == "question_answering":
            return {"start_logits": found["qa"][..., 0], "end_logits": found["qa"][..., 1]}
        if model.head != "none":
            outputs = {"logits": found[_LOGITS.get(model.head, "classifier")]}
            return outputs | ({"seq_relationship_logits": found["nsp"]} if "nsp" in found else {})
        outputs = {"last_hidden_state": found["hidden"]}
        outputs |= {"pooler_output": found["pooled"]} if "pooled" in found else {}
        if model.sentence is not None:
            vectors = pool(found["hidden"], attention_mask, model.sentence.pooling)
            outputs["sentence_embedding"] = normalize(vectors) if model.sentence.normalize else vectors
        return outputs

    return compute


def difference(model: Model, run: Callable[..., Mapping[str, np.ndarray]]) -> float:
    """Returns the difference of an export's outputs from the model's, for random rows with padding.

    UserError if the difference exceeds `TOLERANCE`, or the names or shapes of the outputs differ.
    """
    rows = parity.random_inputs(model.config)
    arrays, real = (rows["input_ids"], rows["mask"], rows["token_type_ids"]), rows["mask"] > 0
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(function(model))(*arrays)

    def without_padding(outputs):
        arrays = {name: np.asarray(x) for name, x in outputs.items()}
        return {name: x[real] if x.shape[:2] == real.shape else x for name, x in arrays.items()}

    what = f"the export of {model.source or 'the model'}"
    return parity.compare(what, without_padding(expected), without_padding(run(*arrays)), TOLERANCE)
