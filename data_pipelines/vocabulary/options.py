"""Defines the options of `bert-jax vocab`."""

from __future__ import annotations

import dataclasses

from bert_jax import tokenization
from bert_jax.tokenization import byte_bpe_files
from data_pipelines.settings import REQUIRED, CorpusOptions, flag

LEAST_COVERAGE = 0.999
# The special tokens of byte-level BPE, by the value of `Options.special_tokens`.
BPE_FAMILIES = {"roberta": byte_bpe_files.ROBERTA_TOKENS, "bert": byte_bpe_files.BERT_TOKENS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CorpusOptions):
    """The options that determine a vocabulary; the flags of `bert-jax vocab`."""

    output: str = flag(
        REQUIRED,
        "File to write: NAME.txt for WordPiece, NAME.model for SentencePiece, NAME.json for BPE.",
        required="FILE, the vocabulary to write",
    )
    overwrite: bool = flag(False, "Replace the output if it exists.")
    add_to: str = flag(
        "",
        "A WordPiece vocabulary, or a model that has one: the output is a list of words that it lacks, those "
        "that would save the most tokens of the text, one a line, for `convert --add_tokens`.",
    )
    size: int = flag(
        30522,
        "Number of tokens; with --add_to, the most words, by default 500. WordPiece: from 5,000 tokens on, "
        "[PAD] is 0 and [UNK] [CLS] [SEP] [MASK] are 100 to 103, with [unused] tokens between, and from "
        "20,000 on up to 998; below 5,000 they are 0 to 4. BPE: the special tokens are 0 to 4, and the bytes "
        "5 to 260.",
    )
    kind: str = flag("wordpiece", "Kind of vocabulary.", choices=tuple(tokenization.KINDS))
    lower_case: bool | None = flag(
        None, "Lower-case the text and strip accents. Default: true; BPE keeps all text."
    )
    seed: int = 12345  # of the sample
    sample_bytes: int = 0  # of text to learn from; 0: 200 MB, or 30 MB for SentencePiece
    sampling_exponent: float = flag(
        1.0,
        "For several languages, one --input each: the share of a language in the sample is proportional to "
        "its size to the power of this exponent; 0.7 in multilingual BERT.",
    )
    compare: tuple[str, ...] = flag(
        (), "Another vocabulary to measure on the same held-out text. May be repeated."
    )
    character_coverage: float = flag(
        0.99995,
        "Fraction of the characters of the text that the tokens must cover; the rarest characters get none. "
        "Not for BPE, which covers all.",
    )
    min_frequency: int = flag(
        2,
        "WordPiece and BPE: how often a pair of tokens must occur to become a token; with --add_to, how "
        "often a word must occur, by default 10.",
    )
    normalizer: str = flag(
        "bert",
        'SentencePiece: how text is normalized, as in `data`; albert also gives each of ( ) " - . \u2013 '
        "\u00a3 \u20ac a piece of its own.",
        choices=("bert", "albert"),
    )
    special_tokens: str = flag(
        "roberta",
        "BPE: the family whose special tokens and rows it has: <s> </s> <pad> <unk> <mask> of RoBERTa, or "
        "[CLS] [SEP] [PAD] [UNK] [MASK], as ModernBERT has them.",
        choices=tuple(BPE_FAMILIES),
    )

    @property
    def folded(self) -> bool:
        """Whether the text is lower-cased and its accents are stripped."""
        return self.kind != "bpe" if self.lower_case is None else self.lower_case
