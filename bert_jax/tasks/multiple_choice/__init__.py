"""Multiple-choice tasks, such as SWAG."""

from bert_jax.tasks.multiple_choice.task import MultipleChoiceTask
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns

_DEFAULTS = {"batch_size": 16, "optimizer.learning_rate": 2e-5}  # paper, section 4.4

TASKS = (
    TaskSpec("multiplechoice", MultipleChoiceTask, defaults=_DEFAULTS),
    # SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), with the columns of the authors' files.
    TaskSpec(
        "swag",
        MultipleChoiceTask,
        columns=Columns("sent1", "sent2", "label", "", True, "ending0,ending1,ending2,ending3"),
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
        columns=Columns("1", "", "6", "", False, "2,3,4,5", quotes=False),
        folder="codah",
        file_name="{split}.tsv",
        defaults=_DEFAULTS,
    ),
)
