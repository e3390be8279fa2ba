"""ALBERT (Lan et al. 2020): layers that share their parameters, and embeddings of width E projected to H.

transformers and google-research/albert differ in three ways that the record translates: google's "gelu" is
the tanh version, which transformers calls "gelu_new"; only transformers has a projection if E equals H; and
TF1 checkpoints have the names of google's scopes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.convert.families import bert
from bert_jax.convert.families.base import Family, TensorFlowConfig
from bert_jax.convert.param_mapping import LAYERS, dense, head, modules, vector
from bert_jax.models import sizes
from bert_jax.models.heads.structures import Rate
from bert_jax.tokenization.families import RECORDS

_LAYER = {
    "query": ("attention.query", "attention_1/self/query"),
    "key": ("attention.key", "attention_1/self/key"),
    "value": ("attention.value", "attention_1/self/value"),
    "attention_output": ("attention.dense", "attention_1/output/dense"),
    "intermediate": ("ffn", "ffn_1/intermediate/dense"),
    "output": ("ffn_output", "ffn_1/intermediate/output/dense"),
    "attention_norm": ("attention.LayerNorm", "LayerNorm"),
    "output_norm": ("full_layer_layer_norm", "LayerNorm_1"),
}
_FIELDS = {
    **{name: name for name in ("vocab_size", "embedding_size", *bert.FIELDS[1:])},
    "num_hidden_groups": "layer_groups",
}

_DROPOUT = Rate(0.1, "classifier_dropout")  # in both programs, independent of the encoder's dropout


def _read_projection(fields: Mapping[str, Any]) -> dict[str, Any]:
    width, size = ((sizes.ALBERT_ARCHITECTURE | dict(fields))[x] for x in ("embedding_size", "hidden_size"))
    is_tensorflow = "model_type" not in fields
    return {} if is_tensorflow or width != size else {"projection_placement": "always"}


FAMILY = Family(
    name="ALBERT",
    model_type="albert",
    class_prefix="Albert",
    base="albert",
    table=(
        *modules(("encoder/embeddings", "albert.embeddings", "bert/embeddings"), bert.EMBEDDINGS),
        *modules(
            ("encoder/embeddings", "albert.encoder", "bert/encoder"),
            {"projection": "embedding_hidden_mapping_in"},
        ),
        *modules(
            (
                LAYERS,
                "albert.encoder.albert_layer_groups.{group}.albert_layers.0",
                "bert/encoder/transformer/group_{group}/inner_group_0",
            ),
            _LAYER,
        ),
        *dense("pooler/dense", "albert.pooler", "bert/pooler/dense"),
        *modules(("mlm", "predictions", "cls/predictions/transform"), bert.TRANSFORM),
        *vector("mlm/bias", "predictions.bias", "cls/predictions/output_bias"),
        # The sentence-order head has the parameters of BERT's next-sentence head.
        *head("nsp", "sop_classifier.classifier", "cls/seq_relationship/"),
        *head("classifier", "classifier", ""),
        *head("qa", "qa_outputs", "cls/squad/"),
    ),
    heads=bert.FAMILY.heads,
    classifiers={
        head: dataclasses.replace(one, drop_out=_DROPOUT) if head != "question_answering" else one
        for head, one in bert.FAMILY.classifiers.items()
    },
    fields={**_FIELDS, "layer_norm_eps": "layer_norm_eps", "classifier_dropout_prob": "classifier_dropout"},
    activation="hidden_act",
    constants={"inner_group_num": 1},
    read_more=_read_projection,
    activations={"gelu_tanh": "gelu_new"},
    checked={"position_embedding_type": "absolute"},
    fixed=sizes.ALBERT_ARCHITECTURE,
    tied=(
        ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
        ("predictions.decoder.bias", "predictions.bias"),
    ),
    tokenizer=RECORDS["albert"],
    special_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    tensorflow=TensorFlowConfig(
        "albert_config.json",
        tuple(_FIELDS),
        activations={"gelu": "gelu_tanh"},
        constants={"inner_group_num": 1},
        fixed=sizes.ALBERT_ARCHITECTURE,
    ),
    sizes=sizes.ALBERT,
)
