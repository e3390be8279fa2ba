"""bert_jax: BERT pre-training and fine-tuning in JAX and Flax, from raw text to a task's score.

Import what is needed by its module (`from bert_jax.parallel import sharding`): this package imports
nothing, so that the command line starts at once and worker processes stay free of jax.
"""

__version__ = "0.1.0"
