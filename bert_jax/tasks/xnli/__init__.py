"""Natural language inference in 15 languages: the XNLI corpus (Conneau et al. 2018)."""

from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns
from bert_jax.tasks.xnli.task import Xnli

TASKS = (
    TaskSpec(
        "xnli",
        Xnli,
        ("average", "accuracy"),
        Columns("sentence1", "sentence2", "gold_label", "pairID", language="language", quotes=False),
        labels=("contradiction", "entailment", "neutral"),
        folder="XNLI-1.0",
        file_name="xnli.{split}.tsv",
    ),
)
