"""Types of the names that `__init__.py` imports when they are first used."""

from bert_jax.library import Encoding as Encoding
from bert_jax.library import LoadedModel as LoadedModel
from bert_jax.library import load as load
from bert_jax.models.config import EncoderConfig as EncoderConfig

__version__: str
__all__ = ["EncoderConfig", "Encoding", "LoadedModel", "load"]
