"""Fine-tuning tasks: the table of those known by name, and how each is read and scored."""

import dataclasses
from pathlib import Path

import ml_collections

from bert_jax import defaults
from bert_jax.errors import UserError
from bert_jax.tasks.reading import Columns


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """What sets one task apart: its columns, labels and metrics.

    `metrics` are reported in order, and the first selects the best checkpoint. `labels` fixes the order of
    the logits; None means that they are inferred from the training rows. `test_columns` differ from `columns`
    where the benchmark's test file has another layout; it never holds labels. `file_name` is what data_dir
    has for a split, in it or in `folder`; empty: the files are named one by one.
    """

    name: str
    kind: str  # of `bert_jax.tasks.problem`
    metrics: tuple[str, ...]
    folder: str = ""
    columns: Columns | None = None
    test_columns: Columns | None = None
    labels: tuple[str, ...] | None = None
    file_name: str = ""  # with {split} in it

    def file(self, data_dir: str, split: str) -> str:
        """The path of a split's file: DATA_DIR/FOLDER/FILE_NAME, or DATA_DIR/FILE_NAME."""
        name = self.file_name.format(split=split)
        tried = list(dict.fromkeys([Path(data_dir, self.folder, name), Path(data_dir, name)]))
        for path in tried:
            if path.exists():
                return str(path)
        expected = Path(self.folder, self.file_name.format(split="train"))
        raise UserError(
            f"{self.name}: found no {' and no '.join(map(str, tried))}; data_dir is the folder that holds "
            f"{expected}"
        )


def _glue(name, folder, metrics, columns, test_columns, kind="classification", labels=None):
    return TaskSpec(name, kind, metrics, folder, columns, test_columns, labels, "{split}.tsv")


TASKS = {
    spec.name: spec
    for spec in (
        # The user's own files: columns come from the configuration.
        TaskSpec("classification", "classification", ("accuracy", "f1_macro")),
        TaskSpec("regression", "regression", ("pearson", "spearman", "mean_squared_error")),
        TaskSpec("multiplechoice", "multiple_choice", ("accuracy",)),
        # SWAG (Zellers et al. 2018) and CODAH (Chen et al. 2019), as their authors' files have them.
        TaskSpec(
            "swag",
            "multiple_choice",
            ("accuracy",),
            columns=Columns("sent1", "sent2", "label", "", True, "ending0,ending1,ending2,ending3"),
        ),
        TaskSpec(
            "codah", "multiple_choice", ("accuracy",), columns=Columns("1", "", "6", "", False, "2,3,4,5")
        ),
        # GLUE (Wang et al. 2018), columns and metrics as gluebenchmark.com has them.
        _glue(
            "cola",
            "CoLA",
            ("matthews", "accuracy"),
            Columns("3", label="1", header=False),
            Columns("sentence", id="index"),
            labels=("0", "1"),
        ),
        _glue(
            "sst2",
            "SST-2",
            ("accuracy",),
            Columns("sentence", label="label"),
            Columns("sentence", id="index"),
            labels=("0", "1"),
        ),
        # Selected by accuracy: calling every pair a paraphrase already gives an F1 of .81.
        _glue(
            "mrpc",
            "MRPC",
            ("accuracy", "f1"),
            Columns("#1 String", "#2 String", "Quality"),
            Columns("#1 String", "#2 String", id="index"),
            labels=("0", "1"),
        ),
        _glue(
            "rte",
            "RTE",
            ("accuracy",),
            Columns("sentence1", "sentence2", "label", "index"),
            Columns("sentence1", "sentence2", id="index"),
            labels=("entailment", "not_entailment"),
        ),
        _glue(
            "stsb",
            "STS-B",
            ("pearson", "spearman"),
            Columns("sentence1", "sentence2", "score", "index"),
            Columns("sentence1", "sentence2", id="index"),
            kind="regression",
        ),
        # SQuAD (Rajpurkar et al. 2016, 2018), and files in its layout.
        TaskSpec("squad", "question_answering", ("f1", "exact_match"), file_name="{split}-v1.1.json"),
        TaskSpec("squad2", "question_answering", ("f1", "exact"), file_name="{split}-v2.0.json"),
    )
}


def get(name: str) -> TaskSpec:
    """The task of this name; "SST-2", "sst_2" and "sst2" are the same."""
    spec = TASKS.get(name.lower().replace("-", "").replace("_", ""))
    if spec is None:
        raise UserError(f"task={name}: expected one of {', '.join(TASKS)}")
    return spec


def default_config(size: str = "base") -> ml_collections.ConfigDict:
    """`defaults.finetune` with the fields that say what is read. Empty: taken from the task, or not there."""
    c = defaults.finetune(size)
    c.task = "classification"
    c.metrics = ""  # names with commas between; the first selects the best checkpoint
    c.max_length = 128  # tokens, with [CLS] and [SEP]
    c.group_by_length = True  # batches of similar lengths
    c.data_dir = ""  # of the tasks that are known by name: the folder with train.tsv and dev.tsv
    c.data = ml_collections.ConfigDict(
        dict(
            train="",
            eval="",
            text_a="",
            text_b="",
            label="",
            choices="",
            id="",
            header=True,
            format="auto",
            quoting="auto",
        )
    )
    c.class_weights = ""  # of the loss: "balanced", or LABEL=WEIGHT with commas between
    c.vocab = ""  # with no init_from; else the checkpoint's own
    c.from_scratch = False  # init_from's architecture and vocabulary, but none of its weights
    return c
