"""Registers the supported model families, with one record for each.

To add one, add a module with its `Family`, an entry in `FAMILIES` and in `bert_jax.tokenization.families`,
and folders and outputs of transformers for every head (tests/testdata/make_families.py).
"""

import dataclasses
import functools

from bert_jax import tokenization
from bert_jax.convert.families import albert, bert, deberta, distilbert, electra, modernbert, roberta
from bert_jax.convert.families.base import CLASSIFIER, Family
from bert_jax.errors import UserError
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import MaskedLMHead

FAMILIES: dict[str, Family] = {
    one.model_type: one
    for one in (
        bert.FAMILY,
        roberta.ROBERTA,
        roberta.XLM_ROBERTA,
        distilbert.FAMILY,
        albert.FAMILY,
        electra.FAMILY,
        modernbert.FAMILY,
        deberta.FAMILY,
    )
}

# Encoders that have no file format of other programs. They have BERT's heads except the masked LM head.
_WITHOUT_FILES: dict[str, Family] = {
    "neobert": dataclasses.replace(
        bert.FAMILY, masked_lm=MaskedLMHead(transform=False, norm=False, tied=False)
    ),
    "crammed-bert": dataclasses.replace(
        bert.FAMILY, masked_lm=MaskedLMHead(transform=False, norm=False, decoder_bias=False)
    ),
}


def of(config: EncoderConfig) -> Family:
    """Returns the family of an encoder; BERT, whose heads it has, for one that no format can store."""
    return _family(config.model_type, config.tie_word_embeddings)


@functools.cache
def _family(model_type: str, is_tied: bool) -> Family:
    family = (FAMILIES | _WITHOUT_FILES).get(model_type, bert.FAMILY)
    return family if is_tied or not family.masked_lm.tied else family.untied()


def check_known(config: EncoderConfig) -> None:
    """Raises UserError if `model_type` of a new model is not the name of a family."""
    known = (*FAMILIES, *_WITHOUT_FILES, "mosaicbert")
    if config.model_type not in known:
        raise UserError(f"--config.model.model_type={config.model_type}: expected one of {', '.join(known)}")


def check_rows(tokenizer: tokenization.Tokenizer, config: EncoderConfig, owner: str) -> None:
    """Raises UserError unless a tokenizer has the rows of a new model; `owner` names what has it."""
    family = of(config)
    # A model with at most one token type ignores the types.
    ours, theirs = (
        [place if config.type_vocab_size > 1 else place[0] for place in template.places("pair")]
        for template in (family.tokenizer.template, tokenizer.template)
    )
    if ours == theirs:
        return
    raise UserError(
        f"{owner} has the row template {tokenizer.template.pair!r}, and a {family.name} needs "
        f"{family.tokenizer.template.pair!r} (--template of `bert-jax data`)"
    )


def load_tokenizer(path: str, config: EncoderConfig) -> tokenization.Tokenizer:
    """Returns the tokenizer of a vocabulary for a new model, with its family's template and normalization."""
    record = of(config).tokenizer
    tokenizer = tokenization.load(path)
    if tokenizer.states_template:
        check_rows(tokenizer, config, path)
        return tokenizer
    normalizer = record.normalizer_of(tokenizer.path)
    return tokenization.load(path, template=record.template, normalizer=normalizer)


__all__ = ["CLASSIFIER", "FAMILIES", "Family", "check_rows", "load_tokenizer", "of"]
