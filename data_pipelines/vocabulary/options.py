"""Defines the options of `bert-jax vocab`."""

from __future__ import annotations

import dataclasses

LEAST_COVERAGE = 0.999


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that determine a vocabulary; see the flags of `bert-jax vocab`.

    Attributes:
        input: files or patterns; see `readers.list_inputs`.
        output: the file to write, atomically; its directory is created if it is missing.
        input_format: one of `readers.FORMATS`.
        size: the number of tokens, including special tokens.
        kind: one of `training.TRAINERS`.
        lower_case: whether to lower-case the text and strip its accents; None: yes, but for byte-level BPE,
            which keeps all text.
        seed: the seed of the sample.
        sample_bytes: the size of the sample, which is made of random byte ranges of the corpus and of the
            beginnings of compressed files; 0 for the default of the kind.
        sampling_exponent: how the sample is divided among the inputs; see `sample.sample`.
        character_coverage: the share of the text's characters that get a token; the rarest ones do not.
        min_frequency: for WordPiece and BPE, how often a pair of pieces must occur to be merged.
        special_tokens: for BPE, the family whose special tokens and rows it has: "roberta" for <s> and </s>,
            "bert" for [CLS] and [SEP], as ModernBERT has them.
        compare: vocabularies whose statistics are computed on the same text.
        overwrite: whether to replace an existing output.
        text_field: the field of the text in JSON or TFDS records.
        id_field: the field that names a record; "" names it by its position.
        tfds_data_dir: see `readers.list_inputs`.
    """

    input: tuple[str, ...]
    output: str
    input_format: str = "text"
    size: int = 30522
    kind: str = "wordpiece"
    lower_case: bool | None = None
    seed: int = 12345
    sample_bytes: int = 0
    sampling_exponent: float = 1.0
    character_coverage: float = 0.99995
    min_frequency: int = 2
    special_tokens: str = "roberta"
    compare: tuple[str, ...] = ()
    overwrite: bool = False
    text_field: str = "text"
    id_field: str = ""
    tfds_data_dir: str = ""

    @property
    def folded(self) -> bool:
        """Whether the text is lower-cased and its accents are stripped."""
        return self.kind != "bpe" if self.lower_case is None else self.lower_case
