"""ALBERT (Lan et al. 2020): layers that share their parameters, and embeddings of width E projected to H.

transformers and google-research/albert differ in three ways that the record translates: google's "gelu" is
the tanh version, which transformers calls "gelu_new"; google has no projection where E equals H; and the
names in a TF1 checkpoint are of google's scopes.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from bert_jax.convert.families.base import Family, TensorFlowConfig, TokenizerRecord
from bert_jax.convert.param_mapping import (
    HUGGINGFACE,
    LAYERS,
    TABLE,
    TENSORFLOW,
    VECTOR,
    dense,
    entry,
    head,
    norm,
)
from bert_jax.models.heads import SEQUENCE, SPANS, TOKENS, Rate

_EMBEDDINGS = ("encoder/embeddings", "albert.embeddings", "bert/embeddings")
_LAYER = (
    LAYERS,
    "albert.encoder.albert_layer_groups.{group}.albert_layers.{member}",
    "bert/encoder/transformer/group_{group}/inner_group_{member}",
)
_DENSES = {
    "query": ("attention.query", "attention_1/self/query"),
    "key": ("attention.key", "attention_1/self/key"),
    "value": ("attention.value", "attention_1/self/value"),
    "attention_output": ("attention.dense", "attention_1/output/dense"),
    "intermediate": ("ffn", "ffn_1/intermediate/dense"),
    "output": ("ffn_output", "ffn_1/intermediate/output/dense"),
}
_NORMS = {
    "attention_norm": ("attention.LayerNorm", "LayerNorm"),
    "output_norm": ("full_layer_layer_norm", "LayerNorm_1"),
}
_TRANSFORM = ("predictions", "cls/predictions/transform")
_FIELDS = {
    "vocab_size": "vocab_size",
    "embedding_size": "embedding_size",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_hidden_groups": "layer_groups",
    "num_attention_heads": "num_attention_heads",
    "inner_group_num": "layers_per_group",
    "intermediate_size": "intermediate_size",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "max_position_embeddings": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
}

# Of the fields that a configuration may leave out, those whose default is not BERT's. Without sizes, both
# programs make an xxlarge model.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "layer_groups": 1,
    "hidden_act": "gelu_tanh",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

_DROPOUT = Rate(0.1, "classifier_dropout")  # in both programs, whatever the dropout of the encoder


def _size(layers: int, hidden: int, heads: int, dropout: float) -> dict[str, Any]:
    return {
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }


FAMILY = Family(
    name="ALBERT",
    model_type="albert",
    class_prefix="Albert",
    base="albert",
    table=(
        *(
            entry(f"{_EMBEDDINGS[0]}/{x}", f"{_EMBEDDINGS[1]}.{x}.weight", f"{_EMBEDDINGS[2]}/{x}", TABLE)
            for x in ("word_embeddings", "token_type_embeddings", "position_embeddings")
        ),
        *norm(f"{_EMBEDDINGS[0]}/layer_norm", f"{_EMBEDDINGS[1]}.LayerNorm", f"{_EMBEDDINGS[2]}/LayerNorm"),
        *dense(
            f"{_EMBEDDINGS[0]}/projection",
            "albert.encoder.embedding_hidden_mapping_in",
            "bert/encoder/embedding_hidden_mapping_in",
        ),
        *(
            x
            for ours, (huggingface, tensorflow) in _DENSES.items()
            for x in dense(f"{_LAYER[0]}/{ours}", f"{_LAYER[1]}.{huggingface}", f"{_LAYER[2]}/{tensorflow}")
        ),
        *(
            x
            for ours, (huggingface, tensorflow) in _NORMS.items()
            for x in norm(f"{_LAYER[0]}/{ours}", f"{_LAYER[1]}.{huggingface}", f"{_LAYER[2]}/{tensorflow}")
        ),
        *dense("pooler/dense", "albert.pooler", "bert/pooler/dense"),
        *dense("mlm/transform", f"{_TRANSFORM[0]}.dense", f"{_TRANSFORM[1]}/dense"),
        *norm("mlm/transform_norm", f"{_TRANSFORM[0]}.LayerNorm", f"{_TRANSFORM[1]}/LayerNorm"),
        entry("mlm/bias", "predictions.bias", "cls/predictions/output_bias", VECTOR),
        # The head of the sentence order has the parameters of BERT's next-sentence head.
        *head("nsp", "sop_classifier.classifier", "cls/seq_relationship/"),
        *head("classifier", "classifier", ""),
        *head("qa", "qa_outputs", "cls/squad/"),
    ),
    heads={
        "none": ("encoder", "(pooler)"),
        "pretraining": ("encoder", "pooler", "mlm", "nsp"),
        "masked_lm": ("encoder", "(pooler)", "mlm"),
        "sequence_classification": ("encoder", "pooler", "classifier"),
        "token_classification": ("encoder", "(pooler)", "classifier"),
        "multiple_choice": ("encoder", "pooler", "classifier"),
        "question_answering": ("encoder", "(pooler)", "qa"),
    },
    classifiers={
        "sequence_classification": dataclasses.replace(SEQUENCE, drop_out=_DROPOUT),
        "token_classification": dataclasses.replace(TOKENS, drop_out=_DROPOUT),
        "multiple_choice": dataclasses.replace(SEQUENCE, drop_out=_DROPOUT),
        "question_answering": SPANS,
    },
    fields={**_FIELDS, "layer_norm_eps": "layer_norm_eps", "classifier_dropout_prob": "classifier_dropout"},
    activation="hidden_act",
    activations={"gelu_tanh": "gelu_new"},
    checked={"position_embedding_type": "absolute"},
    fixed={**_DEFAULTS, "embedding_projection": True},
    tied=(
        ("predictions.decoder.weight", "albert.embeddings.word_embeddings.weight"),
        ("predictions.decoder.bias", "predictions.bias"),
    ),
    beside={
        HUGGINGFACE: re.compile(
            r"albert\.embeddings\.(position_ids|token_type_ids)|predictions\.decoder\..*"
        ),
        TENSORFLOW: re.compile(r".*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_1)?|global_step|.*loss_scale"),
    },
    tokenizer=TokenizerRecord("AlbertTokenizer", kind="sentencepiece"),
    tensorflow=TensorFlowConfig(
        "albert_config.json", tuple(_FIELDS), activations={"gelu": "gelu_tanh"}, fixed=_DEFAULTS
    ),
    sizes={
        f"albert-{size}-{version}": _size(*shape, dropout if version == "v1" else 0.0)
        for version in ("v1", "v2")
        for size, shape, dropout in (
            ("base", (12, 768, 12), 0.1),
            ("large", (24, 1024, 16), 0.1),
            ("xlarge", (24, 2048, 16), 0.1),
            ("xxlarge", (12, 4096, 64), 0.0),
        )
    },
)
