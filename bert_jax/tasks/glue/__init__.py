"""The tasks of GLUE, and submissions to its server."""

from bert_jax.tasks.glue.tables import GLUE

TASKS = GLUE

__all__ = ("GLUE", "TASKS")
