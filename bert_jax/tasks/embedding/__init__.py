"""Sentence embeddings."""

from bert_jax.tasks.embedding.task import EmbeddingTask
from bert_jax.tasks.registry import TaskSpec

TASKS = (
    TaskSpec(
        "embedding",
        EmbeddingTask,
        defaults={"batch_size": 64, "epochs": 1.0, "max_seq_length": 64},
    ),
)
