"""Flax modules of BERT and its family: pure functions of (parameters, arrays).

They know no mesh, no platform, no loss and no file.
"""

from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.feature_tagger import FeatureTagger
from bert_jax.models.heads import ClassificationModel, PretrainingModel

__all__ = ["ClassificationModel", "Encoder", "FeatureTagger", "Pooler", "PretrainingModel"]
