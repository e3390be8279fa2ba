"""Flax modules of BERT: pure functions of (parameters, arrays). They know no mesh, no loss and no file."""

from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.feature_tagger import FeatureTagger
from bert_jax.models.heads import (
    PretrainingModel,
    QuestionAnsweringModel,
    SequenceClassifier,
    TokenClassifier,
)

__all__ = [
    "Encoder",
    "FeatureTagger",
    "Pooler",
    "PretrainingModel",
    "QuestionAnsweringModel",
    "SequenceClassifier",
    "TokenClassifier",
]
