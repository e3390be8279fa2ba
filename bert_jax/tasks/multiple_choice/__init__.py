"""Choices among texts: multiple choice, such as SWAG, and rerankers, which score a query and a document."""

from bert_jax.tasks.multiple_choice.task import MultipleChoiceTask, RerankingTask
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns

_DEFAULTS = {"batch_size": 16, "optimizer.learning_rate": 2e-5}  # paper, section 4.4

TASKS = (
    TaskSpec("multiplechoice", MultipleChoiceTask, defaults=_DEFAULTS),
    # SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), with the columns of the authors' files.
    TaskSpec(
        "swag",
        MultipleChoiceTask,
        columns=Columns("sent1", "sent2", "label", choices="ending0,ending1,ending2,ending3"),
        folder="swag",
        file_name="{split}",
        splits=(
            ("train", ("train.csv", "train.jsonl")),
            ("dev", ("val.csv", "dev.csv", "val.jsonl", "dev.jsonl")),
            ("test", ("test.csv", "test.jsonl")),
        ),
        defaults=_DEFAULTS,
    ),
    TaskSpec(
        "codah",
        MultipleChoiceTask,
        columns=Columns("1", label="6", header=False, choices="2,3,4,5", quotes=False),
        folder="codah",
        file_name="{split}.tsv",
        defaults=_DEFAULTS,
    ),
    TaskSpec("reranking", RerankingTask, defaults={"batch_size": 8, "epochs": 1.0, "max_seq_length": 180}),
)
