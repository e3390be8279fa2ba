"""GLUE (Wang et al. 2018): columns, metrics and files as gluebenchmark.com has them, and its submissions."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic
from bert_jax.tasks.readers.tables import Columns
from bert_jax.tasks.spec import TaskSpec
from bert_jax.tasks.text.task import TextClassification, TextRegression

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_PAIR = Columns("sentence1", "sentence2", "label", "index")
_TEST_PAIR = Columns("sentence1", "sentence2", id="index")
_TEST_SENTENCE = Columns("sentence", id="index")


def _task(name, folder, metrics, columns, test_columns, labels, splits=()) -> TaskSpec:
    return TaskSpec(
        name,
        TextClassification if labels else TextRegression,
        metrics,
        columns,
        test_columns,
        labels,
        folder,
        "{split}.tsv",
        splits,
        prepared=True,
    )


GLUE = (
    _task(
        "cola",
        "CoLA",
        ("matthews", "accuracy"),
        Columns("3", label="1", header=False),
        _TEST_SENTENCE,
        _BINARY,
    ),
    _task("sst2", "SST-2", ("accuracy",), Columns("sentence", label="label"), _TEST_SENTENCE, _BINARY),
    # Selected by accuracy: calling every pair a paraphrase already gives an F1 of .81.
    _task(
        "mrpc",
        "MRPC",
        ("accuracy", "f1"),
        Columns("#1 String", "#2 String", "Quality"),
        Columns("#1 String", "#2 String", id="index"),
        _BINARY,
    ),
    _task("stsb", "STS-B", ("pearson", "spearman"), Columns("sentence1", "sentence2", "score", "index"),
          _TEST_PAIR, None),
    _task(
        "qqp",
        "QQP",
        ("accuracy", "f1"),
        Columns("question1", "question2", "is_duplicate", "id"),
        Columns("question1", "question2", id="id"),
        _BINARY,
    ),
    _task(
        "mnli",
        "MNLI",
        ("accuracy",),
        Columns("sentence1", "sentence2", "gold_label", "index"),
        _TEST_PAIR,
        ("contradiction", "entailment", "neutral"),
        splits=(("dev", ("dev_matched",)), ("test", ("test_matched",))),
    ),
    _task("qnli", "QNLI", ("accuracy",), Columns("question", "sentence", "label", "index"),
          Columns("question", "sentence", id="index"), _ENTAILMENT),
    _task("rte", "RTE", ("accuracy",), _PAIR, _TEST_PAIR, _ENTAILMENT),
    _task("wnli", "WNLI", ("accuracy",), _PAIR, _TEST_PAIR, _BINARY),
)  # fmt: skip

# The files of a submission: {task: {the split of its data_dir: the name in the zip}}. AX, the diagnostic set,
# is answered by the model of MNLI; its diagnostic.tsv lies beside MNLI's files.
_SUBMISSION = {
    "cola": {"test": "CoLA.tsv"},
    "sst2": {"test": "SST-2.tsv"},
    "mrpc": {"test": "MRPC.tsv"},
    "stsb": {"test": "STS-B.tsv"},
    "qqp": {"test": "QQP.tsv"},
    "mnli": {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"},
    "qnli": {"test": "QNLI.tsv"},
    "rte": {"test": "RTE.tsv"},
    "wnli": {"test": "WNLI.tsv"},
}


def submission_files(task: str) -> Mapping[str, str]:
    """{split: name in the zip} of what the server wants of a task.

    Raises:
        UserError: the task is none of GLUE's.
    """
    if task not in _SUBMISSION:
        raise UserError(f"{task} is no task of GLUE; a submission has {', '.join(_SUBMISSION)}")
    return _SUBMISSION[task]


def submission_file(ids: Sequence[str], outputs: np.ndarray, labels: Sequence[str] | None) -> str:
    """A file of the zip: a header, then `index` and `prediction` of every row.

    Args:
        outputs: float32 [N, C] probabilities, or [N, 1] numbers of STS-B, which are cut to 0 to 5.
    """
    if labels is None:
        predicted = [f"{value:.3f}" for value in np.clip(outputs[:, 0], 0, 5)]
    else:
        predicted = [labels[label] for label in np.argmax(outputs, axis=-1)]
    rows = [f"{id_}\t{one}" for id_, one in zip(ids, predicted, strict=True)]
    return "\n".join(["index\tprediction", *rows]) + "\n"


def write_submission(path: str, files: Mapping[str, str]) -> list[str]:
    """Writes the zip; returns the names that the server wants and that are not in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    atomic.write_file(path, buffer.getvalue())
    wanted = [name for of_task in _SUBMISSION.values() for name in of_task.values()]
    return [name for name in wanted if name not in files]


def table(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line a task, with its metrics, and the average over them."""
    lines = []
    for task, found in scores.items():
        shown = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
        lines.append(f"{task:<8}  {shown}")
    return [*lines, f"{'average':<8}  {average(scores):.4f} over {len(scores)} tasks"]


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
    """GLUE's score: the mean over tasks of the mean of each task's metrics.

    CoLA counts by Matthews' correlation alone; MNLI's two sets count as one task.

    Args:
        scores: {task: {metric: value}}, of MNLI with `accuracy` and, where it was scored,
            `accuracy_mismatched`.
    """
    means = [
        found["matthews"] if task == "cola" else float(np.mean(list(found.values())))
        for task, found in scores.items()
    ]
    return float(np.mean(means))
