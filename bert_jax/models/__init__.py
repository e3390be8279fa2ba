"""Flax modules of BERT: pure functions of (parameters, arrays). They know no mesh, no loss and no file."""

from bert_jax.models.encoder import BertEncoder, Pooler
from bert_jax.models.feature_tagger import BertFeatureTagger
from bert_jax.models.heads import (
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

__all__ = [
    "BertEncoder",
    "BertFeatureTagger",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "Pooler",
]
