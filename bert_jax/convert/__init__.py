"""Models in and out: Hugging Face folders, TF1 checkpoints and bert_jax's own, by one table of names."""

from bert_jax.convert.model import HEADS, Model, head_of

__all__ = ["HEADS", "Model", "head_of"]
