"""Types of the names that `__init__.py` imports when they are first used."""

from bert_jax.inference.embedding import Embedder as Embedder
from bert_jax.inference.predictor import Predictor as Predictor
from bert_jax.library import Encoding as Encoding
from bert_jax.library import LoadedModel as LoadedModel
from bert_jax.library import Run as Run
from bert_jax.library import finetune as finetune
from bert_jax.library import load as load
from bert_jax.library import pretrain as pretrain
from bert_jax.models.config import EncoderConfig as EncoderConfig

__version__: str
__all__ = [
    "Embedder",
    "EncoderConfig",
    "Encoding",
    "LoadedModel",
    "Predictor",
    "Run",
    "finetune",
    "load",
    "pretrain",
]
