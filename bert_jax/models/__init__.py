"""Flax modules of BERT: pure functions of (parameters, arrays). They know no mesh, no loss and no file."""

from bert_jax.models.bert import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bert_jax.models.encoder import BertEncoder, Pooler
from bert_jax.models.features import BertFeatureTagger

__all__ = [
    "BertEncoder",
    "BertFeatureTagger",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "Pooler",
]
