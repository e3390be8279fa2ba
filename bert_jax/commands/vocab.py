"""Learn a vocabulary from text: WordPiece, or SentencePiece.

    bert-jax vocab --input='corpus/*.txt' --output=vocab.txt --size=30522

The special tokens have the ids that they have in BERT's vocabularies. Large corpora are sampled, so that
memory stays bounded; the result depends on the text and the flags alone.
"""

from __future__ import annotations

import sys
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import corpus_flags, output_flags
from bert_jax.errors import file_error
from bert_jax.io.progress import Progress

with epy.lazy_imports():
    from data_pipelines import readers, vocabulary


_HIGH_UNKNOWN_RATE = 0.01


def define_flags(flag_values: absl_flags.FlagValues) -> None:
    def define(kind, name: str, default, text: str, *args) -> None:
        kind(name, default, *args, text, flag_values=flag_values)

    corpus_flags.define(flag_values)
    define(
        absl_flags.DEFINE_string,
        "output",
        None,
        "What to write: NAME.txt, or NAME.model for SentencePiece.",
    )
    define(
        absl_flags.DEFINE_integer,
        "size",
        30522,
        "Tokens. WordPiece: from 5,000 on [PAD] is 0 and [UNK] [CLS] [SEP] [MASK] are 100 to 103, with "
        "[unused] ones between, and from 20,000 on up to 998; below 5,000 they are 0 to 4.",
    )
    define(absl_flags.DEFINE_enum, "kind", "wordpiece", "What to learn.", ["wordpiece", "sentencepiece"])
    define(absl_flags.DEFINE_boolean, "lower_case", True, "Lower-case the text and strip accents.")
    define(absl_flags.DEFINE_integer, "seed", 12345, "Of the sample.")
    define(
        absl_flags.DEFINE_integer,
        "sample_bytes",
        0,
        "Text to learn from, drawn from all over the corpus; 0: 200 MB, or 30 MB for SentencePiece.",
    )
    define(
        absl_flags.DEFINE_float,
        "sampling_exponent",
        1.0,
        "Several languages, each an --input: each has a part of the sample in proportion to its size to the "
        "power of this; multilingual BERT has 0.7.",
    )
    define(
        absl_flags.DEFINE_multi_string,
        "compare",
        None,
        "A vocabulary to measure on the same held-out text; may be repeated.",
    )
    define(
        absl_flags.DEFINE_float,
        "character_coverage",
        0.99995,
        "Share of the text's characters that must have a token; the rarest ones have none.",
    )
    define(
        absl_flags.DEFINE_integer,
        "min_frequency",
        2,
        "WordPiece: how often a pair of tokens must occur to become one.",
    )
    output_flags.define_overwrite(flag_values)


def run(flags, args: list[str]) -> int:
    corpus_flags.check("vocab", flags, args, {"input": "text to read", "output": "a file to write"})
    begun = time.monotonic()
    try:
        with Progress() as progress:
            trained = vocabulary.train(
                flags.input,
                flags.input_format,
                flags.output,
                size=flags.size,
                kind=flags.kind,
                lower_case=flags.lower_case,
                seed=flags.seed,
                sample_bytes=flags.sample_bytes,
                sampling_exponent=flags.sampling_exponent,
                character_coverage=flags.character_coverage,
                min_frequency=flags.min_frequency,
                compare=flags.compare or (),
                overwrite=flags.overwrite,
                fields=readers.Fields(flags.text_field, flags.id_field),
                tfds_data_dir=flags.tfds_data_dir,
                progress=progress,
            )
    except OSError as error:
        raise file_error(f"{error.filename or flags.output}: {error.strerror or error}", error) from error
    print(
        f"{trained.path}: {trained.size:,} tokens of {sum(part.documents for part in trained.parts):,} "
        f"documents, {sum(part.bytes for part in trained.parts) / 1e6:,.1f} MB of text, in "
        f"{time.monotonic() - begun:.0f} s"
    )
    several = len(trained.parts) > 1
    for part in trained.parts if several else ():
        times = f", {part.copies} times" if part.copies > 1 else ""
        print(f"from {part.name}: {part.documents:,} documents, {part.bytes / 1e6:,.1f} MB{times}")
    for line in trained.measured:
        of = f" of {line.input}" if several else ""
        seen = "held out" if trained.held_out else "learned from"
        print(
            f"{line.vocabulary} on {line.units:,} {line.unit}s {seen}{of}: "
            f"{line.tokens_per_unit:.3f} tokens per {line.unit}, {line.unknown_rate:.3%} [UNK]"
        )
    if trained.size < flags.size:
        print(
            f"note: the text gives {trained.size:,} tokens, fewer than --size={flags.size}", file=sys.stderr
        )
    for part in trained.parts:
        of = f"{part.name}: " if several else ""
        for line in readers.suspicions(part.counts):
            print(f"warning: {of}{line}", file=sys.stderr)
    if sum(part.counts["documents"] for part in trained.parts) == 1:
        more = f"more documents{readers.FORMATS[flags.input_format].documents_end}, or --nsp=none"
        print(f"note: the corpus is one document; bert-jax data will need {more}", file=sys.stderr)
    unknown = max(line.unknown_rate for line in trained.measured if line.vocabulary == trained.path)
    if unknown > _HIGH_UNKNOWN_RATE:
        print(
            f"warning: {unknown:.1%} of the tokens are [UNK]; try a greater --character_coverage or --size",
            file=sys.stderr,
        )
    return 0
