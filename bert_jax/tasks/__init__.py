"""Fine-tuning tasks: the table of those known by name, and how each is read and scored."""

import ml_collections

from bert_jax import defaults
from bert_jax.errors import UserError
from bert_jax.tasks.glue import GLUE
from bert_jax.tasks.reading import Columns
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
            columns=Columns("sent1", "sent2", "label", "", True, "ending0,ending1,ending2,ending3"),
        ),
        TaskSpec(
            "codah", "multiple_choice", ("accuracy",), columns=Columns("1", "", "6", "", False, "2,3,4,5")
        ),
        *GLUE,
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
    c.doc_stride = 0  # tokens from one window of a longer text to the next; 0: it is cut
    c.pack = True  # random batches, several examples a row, where [CLS] alone is read
    c.group_by_length = True  # else, batches of similar lengths
    c.head = "linear"  # or "bilstm", of tagging with a frozen encoder
    c.head_size = 768  # of each direction of the BiLSTM
    c.frozen = False  # of tagging: train the head alone
    c.feature_layers = ""  # that the head of a frozen encoder reads; the last four
    c.document_context = False  # of tagging: rows are filled up with the sentences around
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
