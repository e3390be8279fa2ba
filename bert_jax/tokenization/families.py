"""Lists the kinds of tokenizers with the names of their files, and the tokenizers of the model families."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from etils import epy

from bert_jax.io import files
from bert_jax.tokenization import templates
from bert_jax.tokenization.interface import Tokenizer

with epy.lazy_imports():
    from bert_jax.tokenization import byte_bpe, sentence_piece, wordpiece


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of tokenizer, whose vocabulary is one file.

    Attributes:
        tokenizer: returns its class. The arguments of the class are a path and the flags `lower_case` and
            `strip_accents` (None to detect them).
        file: the name of the vocabulary in record directories and work directories. Its ending indicates the
            kind, so each kind has a different ending.
        released: the names in the folders of released models. An export uses the first one.
    """

    tokenizer: Callable[[], type[Tokenizer]]
    file: str
    released: tuple[str, ...]

    @property
    def ending(self) -> str:
        """The ending of the names of vocabularies."""
        return os.path.splitext(self.file)[1]


KINDS = {
    "wordpiece": Kind(lambda: wordpiece.WordPieceTokenizer, "vocab.txt", ("vocab.txt",)),
    "sentencepiece": Kind(
        lambda: sentence_piece.SentencePieceTokenizer,
        "vocab.model",
        ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model"),
    ),
    "bpe": Kind(lambda: byte_bpe.ByteBpeTokenizer, "tokenizer.json", ("tokenizer.json",)),
}
FILE_NAMES = tuple(dict.fromkeys(name for kind in KINDS.values() for name in (kind.file, *kind.released)))


def of_file(path: str | os.PathLike) -> Kind:
    """Returns the kind that the ending of a vocabulary's name indicates; WordPiece for any other ending."""
    endings = {kind.ending: kind for kind in KINDS.values()}
    return endings.get(files.suffix(path), KINDS["wordpiece"])


def load_file(path: str, *options: Any) -> Tokenizer:
    """Returns the tokenizer of a vocabulary file; `options` are arguments of `Tokenizer` after the path."""
    return of_file(path).tokenizer()(path, *options)


def find(folder: str | os.PathLike, kind: str = "") -> str | None:
    """Returns the path of the vocabulary in a folder, preferably of one kind, or None if there is none.

    If no vocabulary is a single file, and the folder has the vocab.json and merges.txt of byte-level BPE,
    their content is written to a temporary tokenizer.json, and its path is returned.
    """
    preferred = (KINDS[kind].file, *KINDS[kind].released) if kind else ()
    paths = (os.path.join(folder, name) for name in (*preferred, *FILE_NAMES))
    found = next((path for path in paths if files.exists(path)), None)
    return found or byte_bpe.joined(folder)


@dataclasses.dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer of a family.

    Attributes:
        class_name: the class in tokenizer_config.json for a vocabulary of this kind.
        kind: a key of `KINDS`. A model may also have a vocabulary of another kind. The class in
            tokenizer_config.json then depends on that kind.
        template: how rows are assembled in new models, and in folders with a vocabulary of this kind.
        normalizer: how text is normalized with a vocabulary of this kind.
        fields: further fields of tokenizer_config.json.
    """

    class_name: str
    kind: str = "wordpiece"
    template: templates.Template = templates.BERT
    normalizer: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def has_kind_of(self, path: str) -> bool:
        """Returns whether a vocabulary file is of the family's kind."""
        return of_file(path) is KINDS[self.kind]

    def normalizer_of(self, path: str) -> str:
        """Returns the normalizer for a vocabulary file, which may be of another kind."""
        return self.normalizer if self.has_kind_of(path) else ""


_NO_TYPES = {"model_input_names": ["input_ids", "attention_mask"]}  # for a tokenizer without token types
# The keys are the model_type of config.json.
RECORDS: Mapping[str, TokenizerRecord] = {
    "bert": TokenizerRecord("BertTokenizer"),
    "roberta": TokenizerRecord("RobertaTokenizer", "bpe", templates.ROBERTA, fields=_NO_TYPES),
    "xlm-roberta": TokenizerRecord(
        "XLMRobertaTokenizer", "sentencepiece", templates.ROBERTA, fields=_NO_TYPES
    ),
    "albert": TokenizerRecord("AlbertTokenizer", "sentencepiece", normalizer="albert"),
    "distilbert": TokenizerRecord("DistilBertTokenizer", fields=_NO_TYPES),
    "electra": TokenizerRecord("ElectraTokenizer"),
    "deberta-v2": TokenizerRecord("DebertaV2Tokenizer", "sentencepiece", normalizer="deberta"),
    "modernbert": TokenizerRecord("PreTrainedTokenizerFast", "bpe", templates.MODERNBERT, fields=_NO_TYPES),
}
