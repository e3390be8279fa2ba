"""Learn a vocabulary from text: WordPiece, SentencePiece, or byte-level BPE.

    bert-jax vocab --input='corpus/*.txt' --output=vocab.txt --size=30522

Special tokens have BERT's ids in WordPiece vocabularies of 5,000 or more tokens, and the ids 0 to 4
otherwise: [PAD], [UNK], [CLS], [SEP], [MASK], or for BPE RoBERTa's order, CLS, PAD, SEP, UNK, MASK. Large
corpora are sampled to bound memory. The result depends only on the text and the flags.
"""

import sys
import time

from absl import flags as absl_flags
from etils import epy

from bert_jax.io import wording
from bert_jax.io.progress import Progress
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define, read_options

with epy.lazy_imports():
    from data_pipelines import vocabulary


_HIGH_UNKNOWN_RATE = 0.01


def define_flags(define: Define) -> None:
    define.options(vocabulary.Options)


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    options = read_options(flags, vocabulary.Options)
    begun = time.monotonic()
    with Progress() as progress:
        trained = vocabulary.train(options, progress)
    print(
        f"{trained.path}: {trained.size:,} tokens, learned from "
        f"{counted(sum(len(part.training) for part in trained.parts), 'document')}, "
        f"{wording.size(sum(part.bytes for part in trained.parts))} of text, in "
        f"{time.monotonic() - begun:.0f} s"
    )
    several = len(trained.parts) > 1
    for part in trained.parts if several else ():
        share = part.bytes * part.times / sum(one.bytes * one.times for one in trained.parts)
        print(
            f"from {part.name}: {counted(len(part.training), 'document')}, {wording.size(part.bytes)}, "
            f"{part.times:.2f} times: {share:.2%}"
        )
    for part in trained.parts:
        of = f" of {part.name}" if several else ""
        seen = "held out" if part.held_out else "learned from"
        print(
            f"{trained.path} on {counted(part.words, 'word')} {seen}{of}: {part.tokens_per_word:.3f} tokens "
            f"per word, {part.unknown_rate:.3%} [UNK]"
        )
    if trained.size < flags.size:
        print(f"note: the text yields only {trained.size:,} tokens, not --size={flags.size}", file=sys.stderr)
    unknown = max(part.unknown_rate for part in trained.parts)
    if unknown > _HIGH_UNKNOWN_RATE:
        print(
            f"warning: {unknown:.1%} of the tokens are [UNK]; try a larger --character_coverage or --size",
            file=sys.stderr,
        )
