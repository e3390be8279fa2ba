"""Flax modules of BERT and related encoders, as pure functions of parameters and arrays.

They do not depend on a mesh, a platform, a loss or a file.
"""

from etils import epy

# Lazy, so that `models.config` can be read before jax is imported, which fixes the devices.
with epy.lazy_api_imports(globals()):
    from bert_jax.models.baselines.feature_tagger import FeatureTagger
    from bert_jax.models.encoder import Encoder, Pooler
    from bert_jax.models.heads.classification import ClassificationModel
    from bert_jax.models.heads.pretraining import PretrainingModel

__all__ = ["ClassificationModel", "Encoder", "FeatureTagger", "Pooler", "PretrainingModel"]
