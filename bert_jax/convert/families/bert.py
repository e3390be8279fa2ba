"""BERT (Devlin et al. 2019), with its names in Hugging Face folders and google-research's TF1 checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable

from bert_jax.convert.families.base import Family, TensorFlowConfig, TokenizerRecord
from bert_jax.convert.param_mapping import (
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
from bert_jax.models.heads import SEQUENCE, SPANS, TOKENS
from bert_jax.models.sizes import BERT as SIZES

_EMBEDDINGS = ("encoder/embeddings", "bert.embeddings", "bert/embeddings")
_LAYER = (LAYERS, "bert.encoder.layer.{layer}", "bert/encoder/layer_{layer}")


def _in(parents: tuple[str, str, str], make: Callable, ours: str, theirs: str) -> list[Entry]:
    """Returns entries whose TensorFlow names are the Hugging Face names with other separators."""
    tensorflow = theirs.replace(".", "/")
    return make(f"{parents[0]}/{ours}", f"{parents[1]}.{theirs}", f"{parents[2]}/{tensorflow}")


_TABLES = ("word_embeddings", "token_type_embeddings", "position_embeddings")
_TRANSFORM = ("cls.predictions.transform", "cls/predictions/transform")
_RELEASED = (  # in every released configuration
    "vocab_size",
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

FAMILY = Family(
    name="BERT",
    model_type="bert",
    class_prefix="Bert",
    base="bert",
    table=(
        *(
            entry(f"{_EMBEDDINGS[0]}/{x}", f"{_EMBEDDINGS[1]}.{x}.weight", f"{_EMBEDDINGS[2]}/{x}", TABLE)
            for x in _TABLES
        ),
        *_in(_EMBEDDINGS, norm, "layer_norm", "LayerNorm"),
        *_in(_LAYER, dense, "query", "attention.self.query"),
        *_in(_LAYER, dense, "key", "attention.self.key"),
        *_in(_LAYER, dense, "value", "attention.self.value"),
        *_in(_LAYER, dense, "attention_output", "attention.output.dense"),
        *_in(_LAYER, norm, "attention_norm", "attention.output.LayerNorm"),
        *_in(_LAYER, dense, "intermediate", "intermediate.dense"),
        *_in(_LAYER, dense, "output", "output.dense"),
        *_in(_LAYER, norm, "output_norm", "output.LayerNorm"),
        *dense("pooler/dense", "bert.pooler.dense", "bert/pooler/dense"),
        *dense("mlm/transform", f"{_TRANSFORM[0]}.dense", f"{_TRANSFORM[1]}/dense"),
        *norm("mlm/transform_norm", f"{_TRANSFORM[0]}.LayerNorm", f"{_TRANSFORM[1]}/LayerNorm"),
        entry("mlm/bias", "cls.predictions.bias", "cls/predictions/output_bias", VECTOR),
        *head("nsp", "cls.seq_relationship", "cls/seq_relationship/"),
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
        "sequence_classification": SEQUENCE,
        "token_classification": TOKENS,
        "multiple_choice": SEQUENCE,
        "question_answering": SPANS,
    },
    fields={name: name for name in (*_RELEASED, "layer_norm_eps", "classifier_dropout")},
    activation="hidden_act",
    constants={"position_embedding_type": "absolute"},
    checked={"is_decoder": False, "add_cross_attention": False},
    tied=(
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
    beside={
        HUGGINGFACE: re.compile(
            r"bert\.embeddings\.(position_ids|token_type_ids)|cls\.predictions\.decoder\..*"
        ),
        TENSORFLOW: re.compile(
            r".*/(adam|lamb)_[mv](_\d+)?|.*/Adam(_1)?|global_step|.*loss_scale|.*(good|bad)_steps"
        ),
    },
    tokenizer=TokenizerRecord("BertTokenizer"),
    tensorflow=TensorFlowConfig("bert_config.json", _RELEASED),
    sizes=SIZES,
)
