"""Lists the tokenizers of the model families: which classes of transformers they have, and how rows look."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.tokenization import templates
from bert_jax.tokenization.kinds import KINDS, of_file

_NO_TYPES = {"model_input_names": ["input_ids", "attention_mask"]}  # of a tokenizer without token types


@dataclasses.dataclass(frozen=True)
class TokenizerRecord:
    """The tokenizer of a family.

    Attributes:
        class_name: the class in tokenizer_config.json for a vocabulary of this kind.
        kind: a key of `tokenization.KINDS`. A model may also have a vocabulary of another kind, whose
            class in tokenizer_config.json is then that of the kind.
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


# By the model_type of config.json.
RECORDS: Mapping[str, TokenizerRecord] = {
    "bert": TokenizerRecord("BertTokenizer"),
    "roberta": TokenizerRecord("RobertaTokenizer", "bpe", templates.ROBERTA, fields=_NO_TYPES),
    "xlm-roberta": TokenizerRecord(
        "XLMRobertaTokenizer", "sentencepiece", templates.ROBERTA, fields=_NO_TYPES
    ),
    "albert": TokenizerRecord("AlbertTokenizer", "sentencepiece", normalizer="albert"),
    "distilbert": TokenizerRecord("DistilBertTokenizer", fields=_NO_TYPES),
    "electra": TokenizerRecord("ElectraTokenizer"),
    "modernbert": TokenizerRecord("PreTrainedTokenizerFast", "bpe", templates.MODERNBERT, fields=_NO_TYPES),
}
