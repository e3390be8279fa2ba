"""Minimal pairs: whether a pre-trained model finds the grammatical one of two sentences more likely.

No task and no labels are needed, so that encoders can be compared after minutes of pre-training (Warstadt et
al. 2020, BLiMP). `sentences` has pairs of our own, `read` reads those of a file, and `evaluate` scores them.
"""

from bert_jax.inference.minimal_pairs.evaluation import ALL, Result, evaluate, read
from bert_jax.inference.minimal_pairs.sentences import Pair, generate

__all__ = ["ALL", "Pair", "Result", "evaluate", "generate", "read"]
