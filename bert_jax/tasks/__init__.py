"""Fine-tuning tasks: those known by name, their configurations, and how each is read and scored."""

from bert_jax.tasks.fields import default_config
from bert_jax.tasks.glue.tables import GLUE
from bert_jax.tasks.readers.tables import Columns
from bert_jax.tasks.registry import TASKS, get
from bert_jax.tasks.spec import TaskSpec

__all__ = ("GLUE", "TASKS", "Columns", "TaskSpec", "default_config", "get")
