"""Convert a model between bert_jax, Hugging Face and TF1, or export it for other runtimes.

    bert-jax convert --input=runs/mini --output=exported --to=huggingface
    bert-jax convert --input=uncased_L-12_H-768_A-12/bert_model.ckpt --output=base --to=bert_jax
    bert-jax convert --input=runs/reviews --output=exported --to=onnx

The input's format is detected. The output is read back and compared bit for bit and by a forward pass on
random inputs; if it differs, it is deleted. TF1 checkpoints need the extra `tensorflow`. Other flags change
vocabulary, size and precision during the conversion.

--to=onnx and --to=stablehlo write the model for other runtimes. Outputs are last_hidden_state, logits,
start_logits and end_logits, as in exports of transformers, and sentence_embedding for a sentence embedding
model. Inputs are input_ids, attention_mask and token_type_ids (not in ONNX graphs of models without token
types), for any batch size and any length up to the model's positions. Each file is run and compared with the
model before the folder appears.
"""

from __future__ import annotations

import os

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.convert.heads import PRETRAINED
from bert_jax.errors import check_flag
from bert_jax.io import atomic, files
from bert_jax.io.progress import log
from bert_jax.settings.flags import Define, command_line

with epy.lazy_imports():
    from bert_jax import convert, tokenization
    from bert_jax.convert import conversion, families, formats, model_card, surgery, vocabulary
    from bert_jax.export import folder
    from bert_jax.inference import text_files

EXPORTS = ("onnx", "stablehlo")
# Flags that change the model during the conversion.
CHANGES = ("vocab", "add_tokens", "pad_vocab_to", "positions", "layers", "dtype", "head")


def define_flags(define: Define) -> None:
    define.string("input", f"Model: {shared.MODEL}.", required=f"PATH, the model: {shared.MODEL}")
    define.string("output", "Directory to write.", required="DIR, a new directory")
    define.overwrite()
    define.string(
        "to",
        "Format to write: huggingface, tensorflow, bert_jax, peft (LoRA updates of a run), onnx or "
        "stablehlo.",
        required="huggingface, tensorflow, bert_jax, peft, onnx or stablehlo",
    )
    define.string(
        "ignore",
        "Tensors to skip: a regular expression that matches only tensors outside of the BERT model.",
        "",
    )
    define.string(
        "vocab",
        "New vocabulary: vocab.txt, a .model, tokenizer.json or a folder. Tokens in both keep their "
        "embeddings; a new one gets the mean of its subwords. For an input without a vocabulary: its "
        "vocabulary.",
    )
    define.string(
        "add_tokens",
        "File of tokens to add to a WordPiece vocabulary, one per line. They replace [unusedN] first.",
    )
    define.integer(
        "pad_vocab_to",
        "Pad the vocabulary to a multiple of this, such as 128; results stay the same. 0: remove the "
        "padding.",
    )
    define.integer(
        "positions", "New maximum sequence length; additional position embeddings repeat the old ones."
    )
    define.string(
        "layers",
        "Layers to keep, from 0, in this order, such as 0,2,4,7,9,11. A layer may occur more than once.",
    )
    define.choice("dtype", ["float32", "bfloat16", "float16"], "Type of the parameters.")
    define.choice("head", PRETRAINED, "Heads to keep.")
    shared.add_push(define)


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    choices = (*formats.FORMATS, *EXPORTS)
    check_flag("to", flags.to, flags.to in choices, f"one of {', '.join(choices)}")
    to_huggingface = flags.to == "huggingface"
    is_export = flags.to in EXPORTS
    unused = [] if to_huggingface else ["push_to", "license"]
    unused += ["ignore"] * is_export
    if is_export or not formats.FORMATS[flags.to].takes_changes:
        unused += CHANGES
    shared.check_unused(flags, unused, f"--to={flags.to}")
    if is_export:
        return _export(flags)
    if flags.push_to:
        model_card.check_name(flags.push_to)
    command = command_line("convert", flags)

    def card(model: convert.Model) -> str:
        return model_card.make(model, flags.input, command, license=flags.license, repository=flags.push_to)

    conversion.convert(
        flags.input,
        flags.output,
        flags.to,
        ignore=flags.ignore,
        change=lambda model, scratch: change(flags, model, os.path.join(scratch, "vocab.txt")),
        overwrite=flags.overwrite,
        card=card if to_huggingface else None,
    )
    if flags.push_to:
        print(f"pushed to {model_card.push(flags.output, flags.push_to)}")


def _export(flags: absl_flags.FlagValues) -> None:
    conversion.check_model_directory(flags.output, flags.input, flags.overwrite, _is_export)
    model = convert.load(flags.input, log=log)
    model.check_sentence()
    if model.tokenizer is None:
        log(f"warning: {model.source} has no vocabulary; the folder has none either")
    command = command_line("convert", flags)
    card = model_card.make(model, flags.input, command, folder.usage(model, flags.to))
    with conversion.written(flags.output) as made:
        folder.write(model, made, flags.to, card=card, log=log)
    print(f"wrote {flags.output}: {model.source} as {flags.to}")


def _is_export(directory: str) -> bool:
    names = {*files.names(directory)}
    has_weights = any(files.suffix(name) in (".safetensors", ".bin") for name in names)
    return bool({"onnx", "model.stablehlo"} & names) and not has_weights


def change(flags: absl_flags.FlagValues, model: convert.Model, vocab_path: str) -> convert.Model:
    """Returns the model with the changes that the flags request, made in a fixed order.

    --add_tokens writes the new vocabulary to `vocab_path`.
    """
    shared.check_one(flags, "vocab", "add_tokens", required=False)
    if flags.head and model.generator is not None and flags.head == model.generator.head:
        model = model.generator
        print("network: the generator")
    elif model.generator is not None:
        model = model.replace(generator=None)
        print("network: the discriminator; --head=masked_lm is the generator")
    if flags.vocab and model.tokenizer is None:
        model = model.replace(tokenizer=families.load_tokenizer(flags.vocab, model.config))
        print(f"vocabulary: {flags.vocab}, added to the model")
    elif flags.vocab:
        tokenizer = families.load_tokenizer(flags.vocab, model.config)
        model, report = vocabulary.replace_vocabulary(model, tokenizer)
        print(report)
    if flags.add_tokens:
        model = _add_tokens(model, flags.add_tokens, vocab_path)
    if flags.head:
        print(f"head: {model.head} -> {flags.head}")
        model = surgery.change_head(model, flags.head)
    if (layers := shared.layers(flags)) is not None:
        before = model.config.num_hidden_layers
        model = surgery.select_layers(model, layers)
        print(f"layers: {before} -> {len(layers)} ({', '.join(map(str, layers))})")
    shared.at_least(flags, positions=1, pad_vocab_to=0)
    if flags.positions is not None:
        before = model.config.max_seq_length
        model = surgery.resize_positions(model, flags.positions)
        print(f"positions: {before} -> {flags.positions}")
    if flags.pad_vocab_to is not None:
        before = model.config.vocab_size
        model = (
            surgery.pad_vocabulary(model, flags.pad_vocab_to)
            if flags.pad_vocab_to
            else surgery.unpad_vocabulary(model)
        )
        print(f"rows of the vocabulary: {before:,} -> {model.config.vocab_size:,}")
    if flags.dtype:
        model = surgery.cast(model, flags.dtype)
        print(f"dtype: {flags.dtype}")
    return model


def _add_tokens(model: convert.Model, path: str, vocab_path: str) -> convert.Model:
    old = model.require_tokenizer()
    listed = [line for line in text_files.lines(path) if line.strip()]
    tokens = vocabulary.add_tokens(old, listed)
    atomic.write_file(vocab_path, "".join(f"{token}\n" for token in tokens).encode())
    # These options are the old tokenizer's: added words must not change what is detected.
    tokenizer = tokenization.restore(vocab_path, old.settings() | {"digest": ""})
    tokenizer.added_tokens = old.added_tokens
    model, report = vocabulary.replace_vocabulary(model, tokenizer)
    print(report)
    return model
