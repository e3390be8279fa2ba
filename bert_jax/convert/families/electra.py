"""ELECTRA (Clark et al. 2020): a discriminator of replaced tokens, and the generator that replaces them.

In Hugging Face folders, both networks have the same names, and a folder holds one of them: the discriminator
as `ElectraForPreTraining`, the generator as `ElectraForMaskedLM`. A checkpoint of google-research/electra
holds both, and the tables and the norm of the embeddings once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from bert_jax.convert.families import bert
from bert_jax.convert.families.base import Family, TensorFlowConfig
from bert_jax.convert.param_mapping import (
    GENERATOR,
    HUGGINGFACE,
    LAYERS,
    TENSORFLOW,
    Entry,
    dense,
    head,
    modules,
    vector,
)
from bert_jax.models import sizes
from bert_jax.models.heads.structures import CLASSIFIER_DROPOUT, ClassificationHead, MaskedLMHead, Rate
from bert_jax.tokenization.families import RECORDS


def _of_both(entries: Iterable[Entry]) -> list[Entry]:
    names = [one.names[TENSORFLOW] for one in entries]
    others = [name if "/embeddings/" in name else name.replace("electra/", "generator/") for name in names]
    return [
        one._replace(names={**one.names, GENERATOR: other})
        for one, other in zip(entries, others, strict=True)
    ]


def _of_generator(entries: Iterable[Entry]) -> list[Entry]:
    return [
        one._replace(names={HUGGINGFACE: one.names[HUGGINGFACE], GENERATOR: one.names[TENSORFLOW]})
        for one in entries
    ]


# transformers computes: dropout, dense, gelu by erf whatever `hidden_act` is, and dropout.
_SEQUENCE = ClassificationHead(
    drop_in=CLASSIFIER_DROPOUT, dense="head", activation="gelu", drop_out=CLASSIFIER_DROPOUT
)
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
}

_FIELDS = ("vocab_size", "embedding_size", *bert.FIELDS[1:])
_SMALL = sizes.shape(12, 256, embedding_size=128)

FAMILY = Family(
    name="ELECTRA",
    model_type="electra",
    class_prefix="Electra",
    base="electra",
    table=(
        *_of_both(
            [
                *modules(("encoder/embeddings", "electra.embeddings", "electra/embeddings"), bert.EMBEDDINGS),
                *modules(("encoder/embeddings", "electra", "electra"), {"projection": "embeddings_project"}),
                *modules(
                    (LAYERS, "electra.encoder.layer.{layer}", "electra/encoder/layer_{layer}"), bert.LAYER
                ),
            ]
        ),
        *modules(
            ("discriminator", "discriminator_predictions", "discriminator_predictions"),
            {"dense": "dense", "out": ("dense_prediction", "dense_1")},
        ),
        *_of_generator(
            [
                *modules(("mlm", "generator_predictions", "generator_predictions"), bert.TRANSFORM),
                *vector("mlm/bias", "generator_lm_head.bias", "generator_predictions/output_bias"),
            ]
        ),
        *dense("head/dense", "classifier.dense", heads=("sequence_classification",)),
        *dense("head/dense", "sequence_summary.summary", heads=("multiple_choice",)),
        *head("classifier", "classifier.out_proj", heads=("sequence_classification",)),
        *head("classifier", "classifier", heads=("token_classification", "multiple_choice")),
        *head("qa", "qa_outputs"),
    ),
    heads={
        "none": ("encoder",),
        "replaced_tokens": ("encoder", "discriminator"),
        "masked_lm": ("encoder", "mlm"),
        "sequence_classification": ("encoder", "head", "classifier"),
        "token_classification": ("encoder", "classifier"),
        "multiple_choice": ("encoder", "head", "classifier"),
        "question_answering": ("encoder", "qa"),
    },
    classifiers={
        **bert.FAMILY.classifiers,
        "sequence_classification": _SEQUENCE,
        "multiple_choice": dataclasses.replace(_SEQUENCE, drop_in=Rate(0.0), drop_out=Rate(0.1)),
    },
    masked_lm=MaskedLMHead(activation="gelu"),
    fields={name: name for name in (*_FIELDS, "layer_norm_eps", "classifier_dropout")},
    activation="hidden_act",
    constants=_SUMMARY,
    checked={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    # transformers' defaults, which config.json may omit.
    fixed=_SMALL,
    tied=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
    others={
        TENSORFLOW: r"generator(_predictions)?/.*",
        GENERATOR: r"electra/(embeddings_project|encoder)/.*|discriminator_predictions/.*",
    },
    tokenizer=RECORDS["electra"],
    tensorflow=TensorFlowConfig("electra_config.json", _FIELDS),
    sizes={
        "electra-small-discriminator": _SMALL,
        "electra-base-discriminator": sizes.shape(12, 768, embedding_size=768),
        "electra-large-discriminator": sizes.shape(24, 1024, embedding_size=1024),
        "electra-small-generator": _SMALL,
        "electra-base-generator": sizes.shape(12, 256, embedding_size=768),
        "electra-large-generator": sizes.shape(24, 256, embedding_size=1024),
    },
)
