"""Export a model for other runtimes: ONNX, in float32 or int8, or StableHLO.

    bert-jax export --checkpoint=runs/reviews --output=exported --to=onnx --quantize
    bert-jax export --checkpoint=all-MiniLM-L6-v2 --output=exported --to=stablehlo

The outputs are those of transformers' exports: last_hidden_state, logits, start_logits and end_logits; and
sentence_embedding of a model that was trained for sentence embeddings. Inputs are input_ids, attention_mask
and token_type_ids (which an ONNX graph of a model without token types lacks), of any batch, and of rows up to
the positions of the model. Before the folder appears, every file is run and compared with the model. A folder
with onnx/model.onnx also has the files of the tokenizer, as on the Hugging Face hub.
"""

from __future__ import annotations

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models
from bert_jax.errors import UserError, check_installed
from bert_jax.io import files
from bert_jax.io.progress import log
from bert_jax.settings.flags import Define, command_line

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.convert import conversion, model_card
    from bert_jax.export import folder


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string(
        "checkpoint", f"The model: {models.CHECKPOINT}.", required=f"DIR, the model: {models.CHECKPOINT}"
    )
    define.string("output", "Directory to write.", required="DIR, a new directory")
    define.overwrite()
    define.string("to", "onnx or stablehlo.", "onnx")
    define.boolean("quantize", "With --to=onnx: also write onnx/model_quantized.onnx, with int8 weights.")


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    if flags.to not in folder.FORMATS:
        raise UserError(f"--to={flags.to}: expected {' or '.join(folder.FORMATS)}")
    if flags.quantize and flags.to != folder.ONNX:
        raise UserError("--quantize is for --to=onnx; leave it out")
    if flags.to == folder.ONNX:
        for package in ("onnx", "onnxruntime"):
            check_installed(package, "onnx", "--to=onnx")
    conversion.check_model_directory(
        flags.output, flags.checkpoint, flags.overwrite, _is_export, "--checkpoint", "an export"
    )
    model = convert.load(flags.checkpoint, log=log)
    model.check_sentence()
    if model.tokenizer is None:
        log(f"warning: {model.source} has no vocabulary; the folder has none either")
    command = command_line("export", flags)
    card = model_card.make(model, flags.checkpoint, command, folder.usage(model, flags.to))
    with conversion.written(flags.output) as made:
        folder.write(model, made, flags.to, quantize=flags.quantize, card=card, log=log)
    print(f"wrote {flags.output}: {model.source} as {flags.to}")
    return 0


def _is_export(directory: str) -> bool:
    names = {*files.names(directory)}
    has_weights = any(files.suffix(name) in (".safetensors", ".bin") for name in names)
    return bool({"onnx", "model.stablehlo"} & names) and not has_weights
