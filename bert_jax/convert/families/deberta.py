"""DeBERTa v2 (He et al. 2021) and v3 (He et al. 2023), with their names in Hugging Face folders.

Both versions and mDeBERTa have one architecture. The masked LM head has two sets of names for the same
function: transformers' class has BERT's names, and Microsoft's files have other names, which transformers
reads if config.json has `legacy: false`. Both are read, and BERT's are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.convert.families import bert, electra
from bert_jax.convert.families.base import ACTIVATIONS, Family
from bert_jax.convert.param_mapping import (
    HUGGINGFACE,
    LAYERS,
    convolution,
    dense,
    head,
    modules,
    table,
    vector,
)
from bert_jax.io import json_files
from bert_jax.models import sizes
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import (
    CLASSIFIER_DROPOUT,
    HIDDEN_DROPOUT,
    SPANS,
    TOKENS,
    ClassificationHead,
    ReplacedTokensHead,
)
from bert_jax.tokenization.families import RECORDS

_LAYER = "deberta.encoder.layer.{layer}"
_PROJECTIONS = {"query": "query_proj", "key": "key_proj", "value": "value_proj"}
_POSITION_PROJECTIONS = {"position_key": "pos_key_proj", "position_query": "pos_query_proj"}

# transformers' defaults for fields that config.json omits.
_DEFAULTS = {
    "relative_attention": False,
    "position_biased_input": True,
    "pos_att_type": None,
    "max_relative_positions": -1,
    "position_buckets": -1,
    "share_att_key": False,
    "norm_rel_ebd": "none",
    "conv_kernel_size": 0,
    "conv_act": "tanh",
}
_SCHEMA = {
    "pos_att_type": (str, [str], None),
    "max_relative_positions": int,
    "position_buckets": int,
    "share_att_key": bool,
    "norm_rel_ebd": str,
    "conv_kernel_size": int,
    "conv_act": str,
}


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    json_files.check(fields, _SCHEMA, "config.json")
    stated = fields["pos_att_type"] or []
    kinds = {kind.strip() for kind in (stated.lower().split("|") if isinstance(stated, str) else stated)}
    hidden_size = fields.get("hidden_size", _ARCHITECTURE["hidden_size"])
    return {
        "embedding_size": fields.get("embedding_size", hidden_size),
        "position_attention": "|".join(sorted(kinds)),
        "max_relative_positions": max(0, fields["max_relative_positions"]),
        "position_buckets": max(0, fields["position_buckets"]),
        "share_attention_key": fields["share_att_key"],
        "relative_norm": "layer_norm" in [x.strip() for x in fields["norm_rel_ebd"].lower().split("|")],
        "conv_kernel_size": max(0, fields["conv_kernel_size"]),
        "conv_act": ACTIVATIONS.get(fields["conv_act"], fields["conv_act"]),
    }


def _write(config: EncoderConfig) -> dict[str, Any]:
    """Returns the inverse of `_read`, and the form of the masked LM head."""
    return {
        "pos_att_type": config.position_attention.split("|"),
        "max_relative_positions": config.max_relative_positions or -1,
        "position_buckets": config.position_buckets or -1,
        "share_att_key": config.share_attention_key,
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
        "conv_kernel_size": config.conv_kernel_size,
        "conv_act": FAMILY.activations.get(config.conv_act, config.conv_act),
        "legacy": True,
    }


_ARCHITECTURE = sizes.DEBERTA_ARCHITECTURE | sizes.shape(24, 1536)  # as in transformers

# transformers computes: the first token, dense, gelu, and dropout with the rate cls_dropout.
_SEQUENCE = ClassificationHead(dense="head", activation="gelu", drop_out=CLASSIFIER_DROPOUT)

FAMILY = Family(
    name="DeBERTa",
    model_type="deberta-v2",
    class_prefix="DebertaV2",
    base="deberta",
    table=(
        *modules(
            ("encoder/embeddings", "deberta.embeddings"), bert.EMBEDDINGS | {"projection": "embed_proj"}
        ),
        *table("encoder/relative/table", "deberta.encoder.rel_embeddings"),
        *modules(("encoder/relative", "deberta.encoder"), {"layer_norm": "LayerNorm"}),
        *modules(
            (LAYERS, _LAYER),
            {
                **{
                    ours: f"attention.self.{theirs}"
                    for ours, theirs in (_PROJECTIONS | _POSITION_PROJECTIONS).items()
                },
                **{ours: theirs for ours, theirs in bert.LAYER.items() if ours not in _PROJECTIONS},
            },
        ),
        # Only in the first layer.
        *convolution(f"{LAYERS}/convolution/dense", "deberta.encoder.conv.conv"),
        *modules((f"{LAYERS}/convolution", "deberta.encoder.conv"), {"layer_norm": "LayerNorm"}),
        *modules(("mlm", "cls.predictions.transform"), bert.TRANSFORM),
        *vector("mlm/bias", "cls.predictions.bias"),
        *modules(
            ("discriminator", "mask_predictions"),
            {"norm": "LayerNorm", "dense": "dense", "out": "classifer"},  # as Microsoft's files spell it
            heads=("replaced_tokens",),
        ),
        *dense("head/dense", "pooler.dense"),
        *head("classifier", "classifier"),
        *head("qa", "qa_outputs"),
    ),
    heads=electra.FAMILY.heads,
    classifiers={
        "sequence_classification": _SEQUENCE,
        "token_classification": dataclasses.replace(TOKENS, drop_out=HIDDEN_DROPOUT),
        "multiple_choice": _SEQUENCE,
        "question_answering": SPANS,
    },
    replaced_tokens=ReplacedTokensHead(adds_first=True),
    fields={
        **{name: name for name in (*bert.FIELDS, "embedding_size", "layer_norm_eps")},
        "cls_dropout": "classifier_dropout",
    },
    activation="hidden_act",
    constants={"relative_attention": True, "position_biased_input": False, "pooler_hidden_act": "gelu"},
    checked={"conv_groups": 1},
    defaults=_DEFAULTS,
    fixed=_ARCHITECTURE,
    read_more=_read,
    write_more=_write,
    tied=(
        ("cls.predictions.decoder.weight", "deberta.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    renamed={
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
        "lm_predictions.lm_head.": "cls.predictions.transform.",
    },
    # Microsoft's files also hold the head of the discriminator and the table of the mask decoder.
    others={HUGGINGFACE: r"mask_predictions\..*|deberta\.embeddings\.position_embeddings\.weight"},
    tokenizer=RECORDS["deberta-v2"],
    sizes=sizes.DEBERTA,
)
