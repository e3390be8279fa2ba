"""Classification and regression of texts and pairs of texts."""

from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns
from bert_jax.tasks.text.task import MultiLabel, TextClassification, TextRegression

TASKS = (
    # These tasks are for the user's own files, so their columns come from the configuration.
    TaskSpec("classification", TextClassification, ("accuracy", "f1_macro")),
    TaskSpec("regression", TextRegression, ("pearson", "spearman", "mean_squared_error")),
    TaskSpec("multilabel", MultiLabel),
    # Natural language inference in 15 languages (Conneau et al. 2018), with MultiNLI as training file.
    TaskSpec(
        "xnli",
        TextClassification,
        ("average", "accuracy"),
        Columns("sentence1", "sentence2", "gold_label", "pairID", language="language", quotes=False),
        train_columns=Columns("premise", "hypo", "label", quotes=False),
        labels=("contradiction", "entailment", "neutral"),
        spellings={"contradictory": "contradiction"},  # in the training files
        file_name="{split}",
        splits=tuple(
            (split, tuple(f"{folder}{name}" for name in names for folder in (*folders, "")))
            for split, names, folders in (
                ("train", ("multinli.train.en.tsv",), ("XNLI-MT-1.0/multinli/", "multinli/")),
                ("dev", ("xnli.dev.tsv", "xnli.dev.jsonl"), ("XNLI-1.0/",)),
                ("test", ("xnli.test.tsv", "xnli.test.jsonl"), ("XNLI-1.0/",)),
            )
        ),
    ),
)
