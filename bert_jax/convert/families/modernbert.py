"""ModernBERT (Warner et al. 2024), whose files Ettin's encoders (Weller et al. 2025) share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.convert.families.base import Family
from bert_jax.convert.param_mapping import LAYERS, head, modules, norm, table, vector
from bert_jax.errors import UserError
from bert_jax.io import json_files
from bert_jax.models import sizes
from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads.structures import ClassificationHead, MaskedLMHead, Rate
from bert_jax.tokenization.families import RECORDS

_BASE = sizes.MODERN["modernbert-base"]  # the values of fields that config.json omits
_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_LAYER = "model.layers.{layer}"
_MASKED_LM = ("masked_lm",)
_CLASSIFIERS = ("sequence_classification", "token_classification", "multiple_choice")
_QUESTIONS = ("question_answering",)
_SPECIAL_IDS = {
    "pad_token_id": "pad",
    "bos_token_id": "cls",
    "eos_token_id": "sep",
    "cls_token_id": "cls",
    "sep_token_id": "sep",
}

_SCHEMA = {
    "num_hidden_layers?": range(1, 10_001),
    "layer_types?": ([str], None),
    "global_attn_every_n_layers?": range(1, 10_001),
    "local_attention?": range(-1, 1 << 24),
    "rope_parameters?": (dict, None),
    "attention_dropout?": float,
    "mlp_bias?": bool,
}


def _read(fields: Mapping[str, Any]) -> dict[str, Any]:
    json_files.check(fields, _SCHEMA, "config.json")
    number = fields.get("num_hidden_layers", _BASE["num_hidden_layers"])
    every = fields.get("global_attn_every_n_layers", 3)
    kinds = fields.get("layer_types") or [_LOCAL if i % every else _GLOBAL for i in range(number)]
    is_local = [kind == _LOCAL for kind in kinds]
    periods = [n for n in (every, *range(1, number + 1)) if is_local == [i % n > 0 for i in range(number)]]
    if not periods or not {*kinds} <= {_GLOBAL, _LOCAL}:
        raise UserError(f"layer_types: expected {number} values with {_GLOBAL} at every n-th layer from 0 on")
    theta = _theta(fields, _GLOBAL, "global_rope_theta", 160_000.0)
    found = {
        "rotary_theta": theta,
        "local_rotary_theta": EncoderConfig.local_rotary_theta,
        "hidden_dropout_prob": fields.get("attention_dropout", 0.0),
        "inner_bias": fields.get("mlp_bias", False),
        "output_bias": fields.get("mlp_bias", False),
        "local_window": 0,
        "global_every": 1,
    }
    if periods[0] == 1:
        return found
    local_theta = _theta(fields, _LOCAL, "local_rope_theta", 10_000.0)
    found["local_rotary_theta"] = theta if local_theta is None else local_theta
    found["local_window"] = fields.get("local_attention", 128) // 2
    return found | {"global_every": periods[0]}


def _theta(fields: Mapping[str, Any], kind: str, old: str, default: float) -> Any:
    rope = (fields.get("rope_parameters") or {}).get(kind) or {}
    json_files.check(
        rope, {"rope_type?": str, "rope_theta?": float}, "config.json", f"rope_parameters.{kind}"
    )
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"rope_type={rope['rope_type']!r} is not supported, only 'default'")
    return rope.get("rope_theta", fields.get(old, default))


def _write(config: EncoderConfig) -> dict[str, Any]:
    """Returns the inverse of `_read`, in the fields of old and new versions of transformers."""
    if config.classifier_pooling == "last":
        raise UserError("transformers' ModernBERT does not support classifier_pooling='last'")
    kinds = [_LOCAL if config.is_local(i) else _GLOBAL for i in range(config.num_hidden_layers)]
    thetas = {_GLOBAL: config.rotary_theta, _LOCAL: config.local_rotary_theta}
    fields = {
        "tie_word_embeddings": True,  # if it is false, only the masked LM head is not read
        "layer_types": kinds,
        "rope_parameters": {k: {"rope_type": "default", "rope_theta": v} for k, v in thetas.items()},
        "global_rope_theta": config.rotary_theta,
        "local_rope_theta": config.local_rotary_theta,
        "mlp_bias": config.inner_bias,
        "initializer_cutoff_factor": 2.0,
    }
    if config.local_window:
        fields["local_attention"] = 2 * config.local_window
    fields["global_attn_every_n_layers"] = config.global_every
    if config.vocab_size <= 50283:
        fields |= dict.fromkeys(_SPECIAL_IDS)  # the class's defaults are beyond the table
    return fields


# transformers computes: head.dense, gelu, head.norm, and dropout with the rate classifier_dropout.
_SEQUENCE = ClassificationHead(
    dense="head", dense_bias=False, activation="gelu", norm=True, drop_out=Rate(0.0, "classifier_dropout")
)
_TOKENS = dataclasses.replace(_SEQUENCE, pooling="none")

FAMILY = Family(
    name="ModernBERT",
    model_type="modernbert",
    class_prefix="ModernBert",
    base="model",
    table=(
        *table("encoder/embeddings/word_embeddings", "model.embeddings.tok_embeddings"),
        *norm("encoder/embeddings/layer_norm", "model.embeddings.norm"),
        *(
            one._replace(part=(part, 3))
            for part, name in enumerate(("query", "key", "value"))
            for one in modules((LAYERS, _LAYER), {name: "attn.Wqkv"})
        ),
        *modules(
            (LAYERS, _LAYER),
            {
                "attention_output": "attn.Wo",
                "attention_norm": "attn_norm",
                # The first half of Wi's rows is activated, and multiplied by the second half.
                "intermediate": "mlp.Wi",
                "output": "mlp.Wo",
                "output_norm": "mlp_norm",
            },
        ),
        *norm("encoder/final_norm", "model.final_norm"),
        *modules(("mlm", "head"), {"transform": "dense", "transform_norm": "norm"}, heads=_MASKED_LM),
        *vector("mlm/bias", "decoder.bias", heads=_MASKED_LM),
        *modules(("head", "head"), {"dense": "dense", "norm": "norm"}, heads=(*_CLASSIFIERS, *_QUESTIONS)),
        *head("classifier", "classifier", heads=_CLASSIFIERS),
        *head("qa", "classifier", heads=_QUESTIONS),
    ),
    heads={
        "none": ("encoder",),
        "masked_lm": ("encoder", "mlm"),
        **dict.fromkeys(_CLASSIFIERS, ("encoder", "head", "classifier")),
        "question_answering": ("encoder", "head", "qa"),
    },
    classifiers={
        "sequence_classification": _SEQUENCE,
        "token_classification": _TOKENS,
        "multiple_choice": _SEQUENCE,
        "question_answering": dataclasses.replace(_TOKENS, name="qa"),
    },
    masked_lm=MaskedLMHead(transform_bias=False, activation="gelu"),
    fields={
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_hidden_layers",
        "num_attention_heads": "num_attention_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "norm_eps": "layer_norm_eps",
        "norm_bias": "norm_bias",
        "attention_bias": "attention_bias",
        "attention_dropout": "attention_probs_dropout_prob",
        "embedding_dropout": "embedding_dropout",
        "mlp_dropout": "inner_dropout",
        "classifier_pooling": "classifier_pooling",
        "classifier_dropout": "classifier_dropout",
    },
    activation="hidden_activation",
    constants={
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "decoder_bias": True,
    },
    checked={"rope_scaling": None},
    fixed=_BASE,
    read_more=_read,
    write_more=_write,
    tied=(("decoder.weight", "model.embeddings.tok_embeddings.weight"),),
    tokenizer=RECORDS["modernbert"],
    special_ids=_SPECIAL_IDS,
    sizes=sizes.MODERN,
)
