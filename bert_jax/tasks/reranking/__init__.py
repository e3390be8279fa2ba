"""Rerankers, which score a query and a document together."""

from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.reranking.task import RerankingTask

TASKS = (
    TaskSpec(
        "reranking",
        RerankingTask,
        defaults={"batch_size": 8, "epochs": 1.0, "max_seq_length": 180},
    ),
)
