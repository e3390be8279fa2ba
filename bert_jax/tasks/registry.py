"""The fine-tuning tasks that are known by name."""

from __future__ import annotations

from bert_jax.errors import UserError
from bert_jax.tasks.glue.tables import GLUE
from bert_jax.tasks.readers.tables import Columns
from bert_jax.tasks.spec import TaskSpec

TASKS = {
    spec.name: spec
    for spec in (
        # The user's own files: columns come from the configuration.
        TaskSpec("classification", "classification", ("accuracy", "f1_macro")),
        TaskSpec("regression", "regression", ("pearson", "spearman", "mean_squared_error")),
        # Tags of words; those without B and I, such as parts of speech, have the accuracy alone.
        TaskSpec("tagging", "tagging", ()),
        TaskSpec(
            "conll",
            "tagging",
            (),
            "conll2003",
            file_name="{split}",
            splits=(
                ("train", ("eng.train", "train.txt")),
                ("dev", ("eng.testa", "valid.txt")),
                ("test", ("eng.testb", "test.txt")),
            ),
        ),
        TaskSpec("multilabel", "multilabel", ("f1_micro", "f1_macro", "exact_match")),
        TaskSpec("multiplechoice", "multiple_choice", ("accuracy",)),
        # SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), as their authors' files have them.
        TaskSpec(
            "swag",
            "multiple_choice",
            ("accuracy",),
            "swag",
            columns=Columns("sent1", "sent2", "label", "", True, "ending0,ending1,ending2,ending3"),
            file_name="{split}",
            splits=(
                ("train", ("train.csv", "train.jsonl")),
                ("dev", ("val.csv", "dev.csv", "val.jsonl", "dev.jsonl")),
                ("test", ("test.csv", "test.jsonl")),
            ),
        ),
        TaskSpec(
            "codah",
            "multiple_choice",
            ("accuracy",),
            "codah",
            columns=Columns("1", "", "6", "", False, "2,3,4,5"),
            file_name="{split}.tsv",
        ),
        *GLUE,
        # SQuAD (Rajpurkar et al. 2016, 2018), and files in its layout.
        TaskSpec("squad", "question_answering", ("f1", "exact_match"), file_name="{split}-v1.1.json"),
        TaskSpec("squad2", "question_answering", ("f1", "exact"), file_name="{split}-v2.0.json"),
    )
}


def get(name: str) -> TaskSpec:
    """Returns the task of this name; "SST-2", "sst_2" and "sst2" are the same.

    Raises:
        UserError: there is none.
    """
    spec = TASKS.get(name.lower().replace("-", "").replace("_", ""))
    if spec is None:
        raise UserError(f"task={name}: expected one of {', '.join(TASKS)}")
    return spec
