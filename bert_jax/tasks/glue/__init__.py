"""The tasks of GLUE (Wang et al. 2018) as defined by gluebenchmark.com, and submissions to it."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import atomic
from bert_jax.io.wording import counted
from bert_jax.tasks.registry import TaskSpec
from bert_jax.tasks.table import Columns
from bert_jax.tasks.text import TextClassification, TextRegression

_BINARY, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_ROWS = (  # folder; columns of both texts, the label and the id; labels; metrics
    ("CoLA", ("3", "", "1", ""), _BINARY, ("matthews", "accuracy")),
    ("SST-2", ("sentence", "", "label", ""), _BINARY, ("accuracy",)),
    # Accuracy selects the best checkpoint: calling every pair a paraphrase already gives an F1 of 0.81.
    ("MRPC", ("#1 String", "#2 String", "Quality", ""), _BINARY, ("accuracy", "f1")),
    ("STS-B", ("sentence1", "sentence2", "score", "index"), None, ("pearson", "spearman")),
    ("QQP", ("question1", "question2", "is_duplicate", "id"), _BINARY, ("accuracy", "f1")),
    ("MNLI", ("sentence1", "sentence2", "gold_label", "index"), _NLI, ("accuracy",)),
    ("QNLI", ("question", "sentence", "label", "index"), _ENTAILMENT, ("accuracy",)),
    ("RTE", ("sentence1", "sentence2", "label", "index"), _ENTAILMENT, ("accuracy",)),
    ("WNLI", ("sentence1", "sentence2", "label", "index"), _BINARY, ("accuracy",)),
)
# Differences of the files on the hub (hf:nyu-mll/glue): the text columns, and the names for 0 and 1.
_HUB_TEXTS = {
    "CoLA": ("sentence", ""), "MRPC": ("sentence1", "sentence2"), "MNLI": ("premise", "hypothesis"),
}  # fmt: skip
_HUB_LABELS = {
    "CoLA": ("unacceptable", "acceptable"), "SST-2": ("negative", "positive"),
    "MRPC": ("not_equivalent", "equivalent"), "QQP": ("not_duplicate", "duplicate"),
    "WNLI": ("not_entailment", "entailment"),
}  # fmt: skip
TASKS = GLUE = tuple(
    TaskSpec(
        folder.lower().replace("-", ""),
        TextClassification if labels else TextRegression,
        metrics,
        Columns(first, second, label, id_, header=folder != "CoLA", quotes=False),
        # Among CoLA's files, only the test file has a header.
        test_columns=Columns(
            "sentence" if folder == "CoLA" else first, second, id=id_ or "index", quotes=False
        ),
        labels=labels,
        relevant=_ENTAILMENT[0] if labels == _ENTAILMENT else "",
        folder=folder,
        file_name="{split}.tsv",
        splits=(("dev", ("dev_matched",)), ("test", ("test_matched",))) if folder == "MNLI" else (),
        spellings={name: str(number) for number, name in enumerate(_HUB_LABELS.get(folder, ()))},
        hub_columns=Columns(*_HUB_TEXTS.get(folder, (first, second)), "label", "idx"),
    )
    for folder, (first, second, label, id_), labels, metrics in _ROWS
)
# The files of a submission: {task: {split in data_dir: name in the zip}}. The MNLI model also predicts AX,
# the diagnostic set; its diagnostic.tsv is in the same folder as MNLI's files.
_SUBMISSION = {spec.name: {"test": f"{spec.folder}.tsv"} for spec in GLUE} | {
    "mnli": {"test": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", "diagnostic": "AX.tsv"}
}
_AVERAGED = {spec.name: spec.metrics for spec in GLUE} | {"cola": ("matthews",)}


def submission_files(task: str) -> Mapping[str, str]:
    """Returns the files that a submission needs for a task of GLUE, as {split: name in the zip}."""
    if task not in _SUBMISSION:
        raise UserError(f"expected runs of GLUE tasks ({', '.join(_SUBMISSION)}), but got a run of {task}")
    return _SUBMISSION[task]


def submission_file(ids: Sequence[str], outputs: np.ndarray, labels: Sequence[str]) -> str:
    """Returns the content of a submission file: a header, then `index` and `prediction` of every row.

    `outputs` are float32 [N, C] probabilities of C labels, or [N, 1] scores for STS-B, which has no labels
    and whose scores are clipped to [0, 5].
    """
    if not labels:
        predicted = [f"{value:.3f}" for value in np.clip(outputs[:, 0], 0, 5)]
    else:
        predicted = [labels[label] for label in np.argmax(outputs, axis=-1)]
    rows = [f"{id_}\t{one}" for id_, one in zip(ids, predicted, strict=True)]
    return "\n".join(["index\tprediction", *rows]) + "\n"


def write_submission(path: str, files: Mapping[str, str]) -> list[str]:
    """Writes {name: content} as a submission zip and returns the names of the missing files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    atomic.write_file(path, buffer.getvalue())
    wanted = [name for of_task in _SUBMISSION.values() for name in of_task.values()]
    return [name for name in wanted if name not in files]


def table(scores: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns one line per task with its {metric: value}, and a line with the average."""
    lines = [
        f"{task:<8}  " + "  ".join(f"{name} {value:.4f}" for name, value in found.items())
        for task, found in scores.items()
    ]
    return [*lines, f"{'average':<8}  {average(scores):.4f} over {counted(len(scores), 'task')}"]


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
    """Returns the GLUE score: the mean over tasks of the mean of each task's metrics.

    For CoLA only Matthews' correlation counts.
    """
    means = [np.mean([found[name] for name in _AVERAGED[task]]) for task, found in scores.items()]
    return float(np.mean(means))
