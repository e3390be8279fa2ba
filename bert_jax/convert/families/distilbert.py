"""DistilBERT (Sanh et al. 2019): BERT without token types and a pooler, and with different names."""

from __future__ import annotations

import dataclasses

from bert_jax.convert.families import bert
from bert_jax.convert.families.base import Family
from bert_jax.convert.param_mapping import LAYERS, dense, head, modules, norm, vector
from bert_jax.models.heads.structures import HIDDEN_DROPOUT, SPANS, TOKENS, ClassificationHead, Rate
from bert_jax.tokenization.families import RECORDS

_LAYER = {
    "query": "attention.q_lin",
    "key": "attention.k_lin",
    "value": "attention.v_lin",
    "attention_output": "attention.out_lin",
    "intermediate": "ffn.lin1",
    "output": "ffn.lin2",
    "attention_norm": "sa_layer_norm",
    "output_norm": "output_layer_norm",
}
# transformers computes: pre_classifier, relu, and dropout with the rate seq_classif_dropout.
_SEQUENCE = ClassificationHead(dense="head", activation="relu", drop_out=Rate(0.2, "classifier_dropout"))

FAMILY = Family(
    name="DistilBERT",
    model_type="distilbert",
    class_prefix="DistilBert",
    base="distilbert",
    table=(
        *modules(("encoder/embeddings", "distilbert.embeddings"), bert.EMBEDDINGS),
        *modules((LAYERS, "distilbert.transformer.layer.{layer}"), _LAYER),
        *dense("mlm/transform", "vocab_transform"),
        *norm("mlm/transform_norm", "vocab_layer_norm"),
        *vector("mlm/bias", "vocab_projector.bias"),
        *dense("head/dense", "pre_classifier"),
        *head("classifier", "classifier"),
        *head("qa", "qa_outputs"),
    ),
    heads={
        "none": ("encoder",),
        "masked_lm": ("encoder", "mlm"),
        "sequence_classification": ("encoder", "head", "classifier"),
        "token_classification": ("encoder", "classifier"),
        "multiple_choice": ("encoder", "head", "classifier"),
        "question_answering": ("encoder", "qa"),
    },
    classifiers={
        "sequence_classification": _SEQUENCE,
        "token_classification": dataclasses.replace(TOKENS, drop_out=HIDDEN_DROPOUT),
        "multiple_choice": _SEQUENCE,
        "question_answering": dataclasses.replace(SPANS, drop_out=Rate(0.1)),
    },
    fields={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "max_position_embeddings": "max_position_embeddings",
        "initializer_range": "initializer_range",
        "seq_classif_dropout": "classifier_dropout",
    },
    activation="activation",
    # Reading ignores both: they affect training only.
    write_more=lambda _: {"qa_dropout": 0.1, "sinusoidal_pos_embds": False},
    fixed={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
    tied=(("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),),
    tokenizer=RECORDS["distilbert"],
    sizes={
        "distilbert-base-uncased": {"num_hidden_layers": 6, "vocab_size": 30522},
        "distilbert-base-cased": {"num_hidden_layers": 6, "vocab_size": 28996},
        "distilbert-base-multilingual-cased": {"num_hidden_layers": 6, "vocab_size": 119547},
    },
)
