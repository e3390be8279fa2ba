"""Tagging of words, such as named entity recognition."""

from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.tagging.task import TaggingTask

TASKS = (
    TaskSpec("tagging", TaggingTask),
    TaskSpec(
        "conll",
        TaggingTask,
        folder="conll2003",
        file_name="{split}",
        splits=(
            ("train", ("eng.train", "train.txt")),
            ("dev", ("eng.testa", "valid.txt")),
            ("test", ("eng.testb", "test.txt")),
        ),
        defaults={"epochs": 4.0},
    ),
)
