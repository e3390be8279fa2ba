"""Fine-tuning tasks. Each subpackage defines how its examples are read, encoded, trained on and scored."""

from bert_jax.tasks.base import FinetuneTask
from bert_jax.tasks.fields import default_config
from bert_jax.tasks.glue import GLUE
from bert_jax.tasks.registry import TaskSpec, chosen, get, tasks
from bert_jax.tasks.table import Columns

__all__ = ("GLUE", "Columns", "FinetuneTask", "TaskSpec", "chosen", "default_config", "get", "tasks")
