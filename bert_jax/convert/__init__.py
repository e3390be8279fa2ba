"""Models in and out: Hugging Face folders, TF1 checkpoints and bert_jax's own, by one table of names."""

from bert_jax.convert.loading import (
    KINDS,
    adopt_architecture,
    detect,
    load,
    load_architecture,
    load_params,
)
from bert_jax.convert.model import HEADS, Model, head_of

__all__ = [
    "HEADS",
    "KINDS",
    "Model",
    "adopt_architecture",
    "detect",
    "head_of",
    "load",
    "load_architecture",
    "load_params",
]
