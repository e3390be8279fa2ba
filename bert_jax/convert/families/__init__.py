"""Registers the model families that files may hold, with one record for each.

To add a family, add a module with its `Family`, of about 100 lines, and an entry in `FAMILIES`. The record
states:

1. Configuration. `fields` pairs the fields of config.json with those of `EncoderConfig`; `fixed` gives what
   config.json does not say, such as `position_offset=2` (RoBERTa);
   `constants` and `checked` refuse what cannot be computed, and `translation` has functions for fields that
   do not correspond one to one (ModernBERT's `layer_types`). If a number of `EncoderConfig` is missing, it
   is added there, with BERT's value as the default.
2. Names. `table` has the name of each parameter in each kind of file. `param_mapping.modules` makes the
   entries of the modules of a layer or of the embeddings from a mapping of names, such as `bert.LAYER`, which
   RoBERTa and ELECTRA share. Parameters of layers are under `param_mapping.LAYERS`, and their names in files
   have `{layer}`, or `{group}` and `{member}` for layers that share their parameters (ALBERT). A name that
   depends on the head, such as RoBERTa's `classifier.out_proj`, is an entry with `heads`. If one tensor
   holds several parameters, such as ModernBERT's queries, keys and values, each has an entry with its
   `part`. Entries of parameters that an architecture does not have are ignored. `tied` and `beside` list the
   other tensors that files may have, and `base` is the prefix of the encoder's names.
3. Heads. `heads` lists the parameter groups of each head, "head" being a dense layer that is not the
   pooler; a family without "pretraining" is pre-trained without next-sentence prediction. `classifiers` and
   `masked_lm` describe how the heads compute: pooling, dense layer, activation, norm, biases and dropout,
   where a `Rate` may refer to a field such as `classifier_dropout`. These values decide fine-tuning, pre-
   training, prediction and export alike.
4. Tokenizer. `tokenizer` has the kind, the template of rows with their token types, and the names in
   tokenizer_config.json, and is an entry of `bert_jax.tokenization.families.RECORDS`, since folders are
   also read as vocabularies of text. A kind that does not exist yet is a module in `bert_jax.tokenization`.
5. TF1 checkpoints, if there are any. `tensorflow` has the configuration file, its fields, what it does not
   say, and activations that have another name there (google-research/albert's "gelu" is the tanh version).
6. `sizes` of the released models. Their published parameter counts belong in the tests, together with
   folders and outputs of transformers for every head (tests/testdata/make_families.py).

What a record cannot say yet: a kernel whose axes are in another order in the file (GPT's), and dropout before
the next-sentence head (ALBERT in transformers).
"""

import dataclasses

from bert_jax import tokenization
from bert_jax.convert.families import albert, bert, distilbert, electra, modernbert, roberta
from bert_jax.convert.families.base import CLASSIFIER, Family
from bert_jax.errors import UserError
from bert_jax.io.wording import did_you_mean
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import MaskedLMHead
from bert_jax.tokenization import templates

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
    )
}

# Encoders that no files of other programs hold. They have BERT's heads but for that of masked LM.
_WITHOUT_FILES: dict[str, Family] = {
    "neobert": dataclasses.replace(
        bert.FAMILY, masked_lm=MaskedLMHead(transform=False, norm=False, tied=False)
    ),
    "crammed-bert": dataclasses.replace(
        bert.FAMILY, masked_lm=MaskedLMHead(transform=False, norm=False, decoder_bias=False)
    ),
}


def of(config: EncoderConfig) -> Family:
    """Returns the family of an encoder.

    For an encoder that belongs to no family it is BERT, whose heads it has; only writing such a model is
    refused.
    """
    return (FAMILIES | _WITHOUT_FILES).get(config.model_type, bert.FAMILY)


def check_known(config: EncoderConfig) -> None:
    """Raises UserError if `model_type` of a new model names no family."""
    known = (*FAMILIES, *_WITHOUT_FILES, "mosaicbert")
    if config.model_type not in known:
        raise UserError(
            f"model.model_type={config.model_type!r} is unknown; choose one of {', '.join(known)}"
            f"{did_you_mean(config.model_type, known)}"
        )


def check_rows(tokenizer: tokenization.Tokenizer, config: EncoderConfig, owner: str) -> None:
    """Checks that rows are assembled as the family of a new model has them.

    The template is stored with a vocabulary and with records. Token types do not matter to a model with at
    most one.

    Args:
        tokenizer: the tokenizer, which has the template.
        config: the model.
        owner: what has the template, for the message, such as "the records DIR".

    Raises:
        UserError: the template is that of another family.
    """
    family = of(config)
    ours, theirs = (
        [place if config.type_vocab_size > 1 else place[0] for place in template.places("pair")]
        for template in (family.tokenizer.template, tokenizer.template)
    )
    if ours == theirs:
        return
    name = next(name for name, one in templates.NAMED.items() if one == family.tokenizer.template)
    mend = f"make records with `bert-jax data --template={name}`"
    if tokenizer.states_template:
        special = "roberta" if name == "roberta" else "bert"
        mend = f"make a vocabulary with `bert-jax vocab --kind=bpe --special_tokens={special}`"
    raise UserError(
        f"{owner}: the rows are {tokenizer.template.pair!r}, and those of a {family.name} are "
        f"{family.tokenizer.template.pair!r}; {mend}, or train a model of another family"
    )


def load_tokenizer(path: str, config: EncoderConfig) -> tokenization.Tokenizer:
    """Returns the tokenizer of a vocabulary for a new model, with the rows and the text of its family.

    Raises:
        UserError: the file is not a vocabulary, or says that it has other rows.
    """
    record = of(config).tokenizer
    tokenizer = tokenization.load(path)
    if tokenizer.states_template:
        check_rows(tokenizer, config, path)
        return tokenizer
    normalizer = record.normalizer_of(tokenizer.path)
    return tokenization.load(path, template=record.template, normalizer=normalizer)


__all__ = ["CLASSIFIER", "FAMILIES", "Family", "check_rows", "load_tokenizer", "of"]
