"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020), with their names in Hugging Face folders.

Both are BERT without next-sentence prediction and with a single token type. Positions are counted from
`padding_idx` + 1 = 2, so that 514 rows of the position table are 512 tokens. The classifier of sequences has
a dense layer of its own, and only multiple choice uses a pooler.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from bert_jax.convert.families.base import Family, TokenizerRecord
from bert_jax.convert.param_mapping import HUGGINGFACE, LAYERS, TABLE, VECTOR, dense, entry, head, norm
from bert_jax.models.heads import (
    CLASSIFIER_DROPOUT,
    HIDDEN_DROPOUT,
    SEQUENCE,
    SPANS,
    TOKENS,
    ClassificationHead,
    MaskedLMHead,
)
from bert_jax.tokenization import templates

_LAYER = "roberta.encoder.layer.{layer}"
_FIELDS = (
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
    "layer_norm_eps",
    "classifier_dropout",
)


def _size(layers: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
    }


ROBERTA = Family(
    name="RoBERTa",
    model_type="roberta",
    class_prefix="Roberta",
    base="roberta",
    table=(
        *(
            entry(f"encoder/embeddings/{name}", f"roberta.embeddings.{name}.weight", None, TABLE)
            for name in ("word_embeddings", "token_type_embeddings", "position_embeddings")
        ),
        *norm("encoder/embeddings/layer_norm", "roberta.embeddings.LayerNorm"),
        *dense(f"{LAYERS}/query", f"{_LAYER}.attention.self.query"),
        *dense(f"{LAYERS}/key", f"{_LAYER}.attention.self.key"),
        *dense(f"{LAYERS}/value", f"{_LAYER}.attention.self.value"),
        *dense(f"{LAYERS}/attention_output", f"{_LAYER}.attention.output.dense"),
        *norm(f"{LAYERS}/attention_norm", f"{_LAYER}.attention.output.LayerNorm"),
        *dense(f"{LAYERS}/intermediate", f"{_LAYER}.intermediate.dense"),
        *dense(f"{LAYERS}/output", f"{_LAYER}.output.dense"),
        *norm(f"{LAYERS}/output_norm", f"{_LAYER}.output.LayerNorm"),
        *dense("pooler/dense", "roberta.pooler.dense"),
        *dense("mlm/transform", "lm_head.dense"),
        *norm("mlm/transform_norm", "lm_head.layer_norm"),
        entry("mlm/bias", "lm_head.bias", None, VECTOR),
        *dense("head/dense", "classifier.dense", heads=("sequence_classification",)),
        *head("classifier", "classifier.out_proj", heads=("sequence_classification",)),
        *head("classifier", "classifier", heads=("token_classification", "multiple_choice")),
        *head("qa", "qa_outputs"),
    ),
    heads={
        "none": ("encoder", "(pooler)"),
        "masked_lm": ("encoder", "mlm"),
        "sequence_classification": ("encoder", "head", "classifier"),
        "token_classification": ("encoder", "classifier"),
        "multiple_choice": ("encoder", "pooler", "classifier"),
        "question_answering": ("encoder", "qa"),
    },
    classifiers={
        "sequence_classification": ClassificationHead(
            drop_in=CLASSIFIER_DROPOUT, dense="head", drop_out=CLASSIFIER_DROPOUT
        ),
        "token_classification": TOKENS,
        "multiple_choice": dataclasses.replace(SEQUENCE, drop_out=HIDDEN_DROPOUT),
        "question_answering": SPANS,
    },
    masked_lm=MaskedLMHead(activation="gelu"),  # by erf, whatever `hidden_act` is
    fields={name: name for name in _FIELDS},
    activation="hidden_act",
    constants={"position_embedding_type": "absolute"},
    # The positions of transformers start after the id of the padding.
    checked={"is_decoder": False, "add_cross_attention": False, "pad_token_id": 1},
    fixed={"position_offset": 2},
    tied=(
        ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    beside={
        HUGGINGFACE: re.compile(r"roberta\.embeddings\.(position_ids|token_type_ids)|lm_head\.decoder\..*")
    },
    tokenizer=TokenizerRecord(
        "RobertaTokenizer",
        kind="bpe",
        template=templates.ROBERTA,
        fields={"model_input_names": ["input_ids", "attention_mask"]},
    ),
    sizes={
        "roberta-base": _size(12, 768, 50265),
        "roberta-large": _size(24, 1024, 50265),
        "distilroberta-base": _size(6, 768, 50265),
    },
)

_XLM_SIZES: Mapping[str, Mapping[str, Any]] = {
    "xlm-roberta-base": _size(12, 768, 250002),
    "xlm-roberta-large": _size(24, 1024, 250002),
}

# The tensors of XLM-R have RoBERTa's names.
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    name="XLM-R",
    model_type="xlm-roberta",
    class_prefix="XLMRoberta",
    tokenizer=dataclasses.replace(ROBERTA.tokenizer, class_name="XLMRobertaTokenizer", kind="sentencepiece"),
    sizes=_XLM_SIZES,
)
