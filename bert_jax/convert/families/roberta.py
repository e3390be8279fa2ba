"""RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020), with their names in Hugging Face folders.

Both are BERT without next-sentence prediction and with a single token type. Positions are counted from
`padding_idx` + 1 = 2, so that 514 rows of the position table are 512 tokens. The sequence classifier has a
separate dense layer, and only multiple choice uses a pooler.
"""

from __future__ import annotations

import dataclasses

from bert_jax.convert.families import bert
from bert_jax.convert.families.base import Family
from bert_jax.convert.param_mapping import LAYERS, dense, head, modules, vector
from bert_jax.models import sizes
from bert_jax.models.heads.structures import (
    CLASSIFIER_DROPOUT,
    HIDDEN_DROPOUT,
    SEQUENCE,
    ClassificationHead,
    MaskedLMHead,
)
from bert_jax.tokenization.families import RECORDS

ROBERTA = Family(
    name="RoBERTa",
    model_type="roberta",
    class_prefix="Roberta",
    base="roberta",
    table=(
        *modules(("encoder/embeddings", "roberta.embeddings"), bert.EMBEDDINGS),
        *modules((LAYERS, "roberta.encoder.layer.{layer}"), bert.LAYER),
        *dense("pooler/dense", "roberta.pooler.dense"),
        *modules(("mlm", "lm_head"), {"transform": "dense", "transform_norm": "layer_norm"}),
        *vector("mlm/bias", "lm_head.bias"),
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
        **bert.FAMILY.classifiers,
        "sequence_classification": ClassificationHead(
            drop_in=CLASSIFIER_DROPOUT, dense="head", drop_out=CLASSIFIER_DROPOUT
        ),
        "multiple_choice": dataclasses.replace(SEQUENCE, drop_out=HIDDEN_DROPOUT),
    },
    masked_lm=MaskedLMHead(activation="gelu"),  # by erf, whatever `hidden_act` is
    fields=bert.FAMILY.fields,
    activation="hidden_act",
    constants={"position_embedding_type": "absolute"},
    # The positions of transformers start after the id of the padding.
    checked={"is_decoder": False, "add_cross_attention": False, "pad_token_id": 1},
    fixed={"position_offset": sizes.ROBERTA_ARCHITECTURE["position_offset"]},
    tied=(
        ("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        ("lm_head.decoder.bias", "lm_head.bias"),
    ),
    tokenizer=RECORDS["roberta"],
    special_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    sizes=sizes.ROBERTA,
)

# The tensors of XLM-R have RoBERTa's names.
XLM_ROBERTA = dataclasses.replace(
    ROBERTA,
    name="XLM-R",
    model_type="xlm-roberta",
    class_prefix="XLMRoberta",
    tokenizer=RECORDS["xlm-roberta"],
    sizes=sizes.XLM_ROBERTA,
)
