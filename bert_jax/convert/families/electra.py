"""ELECTRA (Clark et al. 2020): a discriminator of replaced tokens, and the generator that replaces them.

In Hugging Face folders, both networks have the same names, and a folder holds one of them: the discriminator
as `ElectraForPreTraining`, the generator as `ElectraForMaskedLM`. A checkpoint of google-research/electra
holds both, and the tables and the norm of the embeddings once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

from bert_jax.convert.families.base import Family, TensorFlowConfig, TokenizerRecord
from bert_jax.convert.param_mapping import (
    GENERATOR,
    HUGGINGFACE,
    LAYERS,
    TABLE,
    TENSORFLOW,
    VECTOR,
    Entry,
    dense,
    entry,
    head,
    norm,
)
from bert_jax.models.heads import (
    CLASSIFIER_DROPOUT,
    SPANS,
    TOKENS,
    ClassificationHead,
    MaskedLMHead,
    Rate,
)

_EMBEDDINGS = ("encoder/embeddings", "electra.embeddings", "electra/embeddings")
_LAYER = "electra.encoder.layer.{layer}"
_TABLES = ("word_embeddings", "token_type_embeddings", "position_embeddings")
_OF_LAYERS: tuple[tuple[Callable[..., list[Entry]], str, str], ...] = (
    (dense, "query", "attention.self.query"),
    (dense, "key", "attention.self.key"),
    (dense, "value", "attention.self.value"),
    (dense, "attention_output", "attention.output.dense"),
    (norm, "attention_norm", "attention.output.LayerNorm"),
    (dense, "intermediate", "intermediate.dense"),
    (dense, "output", "output.dense"),
    (norm, "output_norm", "output.LayerNorm"),
)


def _of_network(make: Callable[..., list[Entry]], ours: str, theirs: str) -> list[Entry]:
    """Returns entries whose TF1 names have the scope of the network, `electra` or `generator`."""
    below = theirs.removeprefix("electra.").replace(".", "/").replace("encoder/layer/", "encoder/layer_")
    return _named(make, ours, theirs, f"electra/{below}", f"generator/{below}")


def _named(
    make: Callable[..., list[Entry]], ours: str, theirs: str, tensorflow: str | None, generator: str | None
) -> list[Entry]:
    """Returns entries with TF1 names for the discriminator and for the generator; None for no name."""
    entries = make(ours, theirs, tensorflow)
    others = make(ours, theirs, generator)
    return [
        one._replace(names={**one.names, **({GENERATOR: x.names[TENSORFLOW]} if generator else {})})
        for one, x in zip(entries, others, strict=True)
    ]


# In transformers: dropout, dense, gelu by erf whatever `hidden_act` is, and dropout.
_SEQUENCE = ClassificationHead(
    drop_in=CLASSIFIER_DROPOUT, dense="head", activation="gelu", drop_out=CLASSIFIER_DROPOUT
)
_SUMMARY = {
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
    "summary_last_dropout": 0.1,
}

_FIELDS = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)


def _size(layers: int, hidden: int, embedding: int) -> dict[str, int]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": 4 * hidden,
        "embedding_size": embedding,
    }


FAMILY = Family(
    name="ELECTRA",
    model_type="electra",
    class_prefix="Electra",
    base="electra",
    table=(
        *(
            x
            for name in _TABLES
            for x in _named(
                lambda ours, theirs, tensorflow: [entry(ours, f"{theirs}.weight", tensorflow, TABLE)],
                f"{_EMBEDDINGS[0]}/{name}",
                f"{_EMBEDDINGS[1]}.{name}",
                f"{_EMBEDDINGS[2]}/{name}",
                f"{_EMBEDDINGS[2]}/{name}",
            )
        ),
        *_named(
            norm,
            f"{_EMBEDDINGS[0]}/layer_norm",
            f"{_EMBEDDINGS[1]}.LayerNorm",
            f"{_EMBEDDINGS[2]}/LayerNorm",
            f"{_EMBEDDINGS[2]}/LayerNorm",
        ),
        *_of_network(dense, f"{_EMBEDDINGS[0]}/projection", "electra.embeddings_project"),
        *(
            x
            for make, ours, name in _OF_LAYERS
            for x in _of_network(make, f"{LAYERS}/{ours}", f"{_LAYER}.{name}")
        ),
        *dense("discriminator/dense", "discriminator_predictions.dense", "discriminator_predictions/dense"),
        *dense(
            "discriminator/out",
            "discriminator_predictions.dense_prediction",
            "discriminator_predictions/dense_1",
        ),
        *_named(dense, "mlm/transform", "generator_predictions.dense", None, "generator_predictions/dense"),
        *_named(
            norm,
            "mlm/transform_norm",
            "generator_predictions.LayerNorm",
            None,
            "generator_predictions/LayerNorm",
        ),
        Entry(
            "mlm/bias",
            {HUGGINGFACE: "generator_lm_head.bias", GENERATOR: "generator_predictions/output_bias"},
            VECTOR,
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
        "sequence_classification": _SEQUENCE,
        "token_classification": TOKENS,
        "multiple_choice": dataclasses.replace(_SEQUENCE, drop_in=Rate(0.0), drop_out=Rate(0.1)),
        "question_answering": SPANS,
    },
    masked_lm=MaskedLMHead(activation="gelu"),
    fields={name: name for name in (*_FIELDS, "layer_norm_eps", "classifier_dropout")},
    activation="hidden_act",
    constants=_SUMMARY,
    checked={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    # transformers' defaults, which config.json may leave out.
    fixed=_size(12, 256, 128),
    tied=(("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),),
    beside={
        HUGGINGFACE: re.compile(
            r"electra\.embeddings\.(position_ids|token_type_ids)|generator_lm_head\.weight"
        ),
        **{
            kind: re.compile(rf".*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_1)?|global_step|{other}")
            for kind, other in (
                (TENSORFLOW, r"generator(_predictions)?/.*"),
                (GENERATOR, r"electra/(embeddings_project|encoder)/.*|discriminator_predictions/.*"),
            )
        },
    },
    tokenizer=TokenizerRecord("ElectraTokenizer"),
    tensorflow=TensorFlowConfig("electra_config.json", _FIELDS),
    sizes={
        "electra-small-discriminator": _size(12, 256, 128),
        "electra-base-discriminator": _size(12, 768, 768),
        "electra-large-discriminator": _size(24, 1024, 1024),
        "electra-small-generator": _size(12, 256, 128),
        "electra-base-generator": _size(12, 256, 768),
        "electra-large-generator": _size(24, 256, 1024),
    },
)
