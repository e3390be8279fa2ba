"""Extractive question answering, such as SQuAD: an answer is a span of the context."""

from bert_jax.tasks.question_answering.task import QuestionAnsweringTask
from bert_jax.tasks.registry import TaskSpec

_DEFAULTS = {"max_seq_length": 384, "doc_stride": 128}  # google-research/bert

# SQuAD (Rajpurkar et al. 2016, 2018), and other files with its layout.
TASKS = (
    TaskSpec("squad", QuestionAnsweringTask, file_name="{split}-v1.1.json", defaults=_DEFAULTS),
    TaskSpec(
        "squad2",
        QuestionAnsweringTask,
        file_name="{split}-v2.0.json",
        defaults={**_DEFAULTS, "v2": True, "batch_size": 48, "epochs": 2.0},
    ),
)
