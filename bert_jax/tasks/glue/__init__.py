"""The tasks of GLUE (Wang et al. 2018) as defined by gluebenchmark.com, and submissions to it."""

from bert_jax.tasks.glue.tables import GLUE

TASKS = GLUE

__all__ = ("GLUE", "TASKS")
