"""Turn a file of texts into a file of vectors: one per text, or one per token.

    bert-jax embed --checkpoint=runs/mini --input=texts.txt --output=vectors.npy
    bert-jax embed --checkpoint=all-MiniLM-L6-v2 --input=texts.txt --output=vectors.npy --normalize
    bert-jax embed --checkpoint=runs/mini --input=texts.txt --output=x.jsonl --pooling=none --layers=-2,-1
    bert-jax embed --checkpoint=runs/mini --input=texts.txt --output=x.jsonl --jsonl_format=google

Each line of the input is a text, blank lines included, and the output has the same order. Files of any length
are streamed in bounded memory.
"""

from __future__ import annotations

import itertools
import sys
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import output_flags
from bert_jax.errors import UserError
from bert_jax.io.progress import Progress
from bert_jax.kernels.dispatch import DTYPES

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, embedding_files
    from bert_jax.parallel import compiler_options


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    def text(name, default, help):
        absl_flags.DEFINE_string(name, default, help, flag_values=flag_values)

    text("checkpoint", None, "Work directory or step of bert-jax, Hugging Face folder, or TF1 prefix.")
    text(
        "input",
        None,
        "One text a line, or one object a line where the name ends in .jsonl; packed or not; - for standard "
        "input.",
    )
    text(
        "output",
        None,
        "File to write: .npy (pooled only), .safetensors, or .jsonl.",
    )
    absl_flags.DEFINE_enum(
        "jsonl_format",
        "bert_jax",
        ["bert_jax", "google"],
        "Objects of a .jsonl: bert_jax has the text and its number; google is what extract_features of "
        "google-research/bert writes, without the text.",
        flag_values=flag_values,
    )
    output_flags.define_overwrite(flag_values)
    text(
        "layers",
        None,
        "Layers whose states are taken, set end to end in this order: -1 is the last, 1 the first, and 0 the "
        "embeddings. Default: -4,-3,-2,-1 with --pooling=none, else -1.",
    )
    text(
        "pooling",
        "mean",
        "One vector a text: mean (over its tokens, [CLS] and [SEP] among them), cls (the state at [CLS]), "
        "pooler (that through the pre-trained dense layer and tanh); or none, for one a token.",
    )
    text("text_a", "text", "Field of a .jsonl with the text.")
    text("text_b", "", "Field of a .jsonl with the second text of a pair.")
    text(
        "dtype",
        "auto",
        "Of the computation: float32, bfloat16, or auto: float32 on CPUs, else that of the checkpoint's run, "
        "or bfloat16.",
    )
    absl_flags.DEFINE_bool(
        "pairs",
        False,
        "Each line is a pair of texts with a tab between them, two segments of one input.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_bool("normalize", False, "Scale each vector to length 1.", flag_values=flag_values)
    absl_flags.DEFINE_integer(
        "max_seq_length",
        0,
        "Tokens of a text, [CLS] and [SEP] among them; the rest is cut. 0: all of the model's positions.",
        flag_values=flag_values,
    )
    absl_flags.DEFINE_integer(
        "batch_tokens",
        0,
        "Tokens that each device computes at a time; 0: 4,096 on CPUs, else 32,768.",
        flag_values=flag_values,
    )


def run(flags, args: list[str]) -> int:
    if args:
        raise UserError(f"embed takes no arguments besides its flags, but was given {args[0]!r}")
    if not flags.checkpoint:
        raise UserError("which model? give --checkpoint=DIR")
    if not flags.input:
        raise UserError("which texts? give --input=FILE with one a line, or - for standard input")
    if not flags.output:
        raise UserError("where should the vectors go? give --output=FILE.npy, .safetensors or .jsonl")
    if flags.dtype not in DTYPES:
        raise UserError(f"--dtype={flags.dtype}: expected one of {', '.join(DTYPES)}")
    layers = [-1]
    if flags.layers is not None:
        try:
            layers = [int(layer) for layer in flags.layers.split(",")]
        except ValueError:
            raise UserError(f"--layers={flags.layers}: expected numbers such as -4,-3,-2,-1") from None
    embedding_files.check_output(flags.output, flags.pooling, flags.jsonl_format, flags.overwrite)
    texts = embedding_files.Texts(flags.input, flags.pairs, flags.text_a, flags.text_b)
    compiler_options.enable_compilation_cache()

    def log(line):
        print(line, file=sys.stderr)

    model = convert.load(flags.checkpoint, log=log)
    if flags.layers is None and flags.pooling == "none":
        layers = list(range(-min(4, model.config.num_hidden_layers), 0))
    embedder = embedding.Embedder(
        model,
        layers=layers,
        pooling=flags.pooling,
        normalize=flags.normalize,
        max_seq_length=flags.max_seq_length,
        dtype=flags.dtype,
        batch_tokens=flags.batch_tokens,
        log=log,
    )
    began = time.monotonic()
    tokens = cut = 0
    with Progress() as progress, embedding_files.writer(flags.output, embedder, flags.jsonl_format) as out:
        progress.start("embedding", texts.count(), "texts")
        # The embedder reads ahead by one window of texts, which are kept until they are written.
        ahead, behind = itertools.tee(texts)
        for features, text in zip(embedder.stream(ahead, progress.at), behind, strict=True):
            out.write(text, features)
            tokens += len(features.token_ids)
            cut += features.cut
        if not out.texts:
            raise UserError(f"{flags.input} has no texts; expected one a line")
    seconds = time.monotonic() - began
    for number, what in (
        (cut, f"were longer than {embedder.max_seq_length} tokens and lost their ends"),
        (texts.blank, "are blank"),
    ):
        if number:
            log(f"warning: {number:,} of {out.texts:,} texts {what}")
    each = f"{embedder.width} numbers a {'token' if flags.pooling == 'none' else 'text'}"
    print(
        f"wrote {flags.output}: {out.texts:,} texts, {tokens:,} tokens, {each}; "
        f"{seconds:.1f} s, {out.texts / seconds:,.0f} texts a second"
    )
    return 0
