"""Vectors of texts: sentence embeddings, and late interaction with a vector for each token."""

from bert_jax.tasks.embedding.task import EmbeddingTask, LateInteractionTask
from bert_jax.tasks.registry import TaskSpec

TASKS = (
    TaskSpec(
        "embedding",
        EmbeddingTask,
        defaults={"batch_size": 64, "epochs": 1.0, "max_seq_length": 64},
    ),
    TaskSpec(
        "lateinteraction",
        LateInteractionTask,
        defaults={"epochs": 1.0, "max_seq_length": 180, "temperature": 1.0},
    ),
)
