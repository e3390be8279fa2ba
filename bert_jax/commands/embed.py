r"""Embed texts: write one vector per text, or one per token.

    bert-jax embed --model=runs/mini --input=texts.txt --output=vectors.npy
    bert-jax embed --model=sentence-transformers/all-MiniLM-L6-v2 --input=texts.txt \
        --output=vectors.npy --normalize
    bert-jax embed --model=runs/mini --input=reviews.csv --text=review --output=vectors.npy
    bert-jax embed --model=runs/mini --input=texts.txt --output=x.jsonl --pooling=none --layers=-2,-1

Each line of the input, even a blank one, or each row of a table is a text. The output has the same order.
Files of any length are streamed in bounded memory, except to .safetensors, which is written at the end.
"""

import itertools
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import check_flag
from bert_jax.io.progress import Progress, log
from bert_jax.io.wording import counted, rate
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, text_files
    from bert_jax.parallel import compiler_options


def define_flags(define: Define) -> None:
    shared.add_model(define)
    define.string(
        "input",
        "File with one text per line, a CSV, TSV, JSON lines or Parquet table, hf:ORG/NAME for a training "
        "set on the hub, or - for standard input.",
        required="FILE with one text per line, or a table, or - for standard input",
    )
    define.string(
        "output",
        "File to write: .npy (pooled vectors only), .safetensors or .jsonl.",
        required="FILE.npy, .safetensors or .jsonl",
    )
    define.overwrite()
    define.string(
        "layers",
        "Layers to concatenate, in this order: -1 is the last, 1 the first, 0 the embeddings. Default: -1, "
        "or -4,-3,-2,-1 with --pooling=none.",
    )
    define.string(
        "pooling",
        "One vector per text: mean or max over its tokens, cls, last (token), or pooler (cls after the "
        "pooler's dense layer); or none: one vector per token. Default: a sentence embedding model's "
        "pooling, or mean.",
    )
    define.string(
        "prompt", "Name of a prompt of the model to put before each text, such as query or document.", ""
    )
    define.string("prefix", "Prefix to put before each text.", "")
    shared.add_text_columns(define, " Default: one with a usual name, such as text.")
    define.boolean(
        "normalize",
        "Scale each vector to length 1. Default: only if a sentence embedding model does, and not with "
        "--pooling=none.",
        None,
    )
    define.integer(
        "max_seq_length",
        "Maximum tokens per text; longer texts are truncated. 0: a sentence embedding model's maximum, or "
        "the number of positions.",
        0,
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    layers = shared.layers(flags)
    shared.check_one(flags, "prompt", "prefix", required=False)
    embedding.check_output(flags.output, flags.pooling or "", flags.overwrite)
    if not text_files.is_table(flags.input):
        shared.check_unused(flags, ("text",), "lines of text")
    text_files.check(flags.input, "--input")
    texts = text_files.read_texts(flags.input, **shared.text_columns(flags))
    compiler_options.enable_compilation_cache()

    model = convert.load(flags.model, log=log)
    if layers is None:
        count = min(4, model.config.num_hidden_layers) if flags.pooling == "none" else 1
        layers = list(range(-count, 0))
    embedder = embedding.Embedder(
        model,
        layers=layers,
        pooling=flags.pooling,
        normalize=flags.normalize,
        max_seq_length=flags.max_seq_length,
        dtype=flags.dtype,
        log=log,
    )
    prefix = flags.prefix or embedder.sentence.prompt(flags.prompt)
    began = time.monotonic()
    count = tokens = cut = blank = 0

    def rows(progress):
        nonlocal count, tokens, cut, blank
        # The embedder reads ahead by one window of texts, which are kept until they are written.
        ahead, behind = itertools.tee(texts)
        for features, text in zip(embedder.stream(ahead, progress.at, prefix=prefix), behind, strict=True):
            count += 1
            tokens += len(features.token_ids)
            cut += features.cut
            blank += not "".join(text).strip()
            yield text, features
        check_flag("input", flags.input, count, "one text or more")

    with Progress() as progress:
        progress.start("embedding", text_files.count_lines(flags.input), "texts")
        embedding.write(flags.output, embedder, rows(progress))
    seconds = time.monotonic() - began
    if cut or blank:
        log(f"warning: {cut:,} texts were cut after {embedder.max_seq_length} tokens, {blank:,} are blank")
    of = "token" if embedder.pooling == "none" else "text"
    print(
        f"wrote {flags.output}: {counted(count, 'text')}, {tokens:,} tokens, "
        f"{embedder.width} numbers per {of}{embedder.engine.unknown}; {seconds:.1f} s, "
        f"{rate(count / seconds)} texts per second"
    )
