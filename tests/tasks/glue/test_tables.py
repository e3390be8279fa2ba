"""GLUE: the files of every task, the table over several runs, and the zip for the server."""

import zipfile

import numpy as np
import pytest
from support.fine_tuned import make_task

from bert_jax import hub, tasks
from bert_jax.tasks import glue

# Of each task a row of train.tsv and of test.tsv as GLUE's archive has them.
ROWS = {
    "CoLA": ("gj04\t1\t\tthe cat is big", "index\tsentence\n0\tthe dog is a bird"),
    "SST-2": ("sentence\tlabel\nthe cat is big\t1", "index\tsentence\n0\tthe dog"),
    "MRPC": (
        'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tthe cat\tthe "dog',
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t7\t8\tthe cat\tthe dog",
    ),
    "STS-B": (
        "index\tgenre\tsentence1\tsentence2\tscore\n3\tnews\tthe cat\tthe dog\t2.5",
        "index\tgenre\tsentence1\tsentence2\n3\tnews\tthe cat\tthe dog",
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tthe cat\tthe dog\t0",
        "id\tquestion1\tquestion2\n0\tthe cat\tthe dog",
    ),
    "MNLI": (
        "index\tpairID\tsentence1\tsentence2\tlabel1\tgold_label\n4\t9\tthe cat\tthe dog\tneutral\tneutral",
        "index\tpairID\tsentence1\tsentence2\n4\t9\tthe cat\tthe dog",
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n6\tthe cat\tthe dog\tnot_entailment",
        "index\tquestion\tsentence\n6\tthe cat\tthe dog",
    ),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n6\tthe cat\tthe dog\tentailment",
        "index\tsentence1\tsentence2\n6\tthe cat\tthe dog",
    ),
    "WNLI": (
        "index\tsentence1\tsentence2\tlabel\n6\tthe cat\tthe dog\t1",
        "index\tsentence1\tsentence2\n6\tthe cat\tthe dog",
    ),
}


@pytest.fixture
def archive(tmp_path):
    for folder, (train, test) in ROWS.items():
        (tmp_path / folder).mkdir()
        dev, tests = ["dev"], ["test"]
        if folder == "MNLI":
            dev, tests = ["dev_matched", "dev_mismatched"], ["test_matched", "test_mismatched", "diagnostic"]
        for name in ("train", *dev):
            (tmp_path / folder / f"{name}.tsv").write_text(train + "\n", encoding="utf-8-sig")
        for name in tests:
            (tmp_path / folder / f"{name}.tsv").write_text(test + "\n")
    return tmp_path


@pytest.mark.parametrize("spec", tasks.GLUE, ids=lambda spec: spec.name)
def test_every_file_of_the_archive_is_read(spec, archive, vocabulary):
    found = make_task(vocabulary, spec.name, spec.labels)
    for split in ("train", "dev", *(["dev_mismatched"] if spec.name == "mnli" else [])):
        examples = found.read(spec.file(str(archive), split))
        label = {"stsb": 2.5, "mnli": 2, "qnli": 1, "rte": 0, "qqp": 0}.get(spec.name, 1)
        assert examples.labels == [label] and examples.texts_a[0] == "the cat" + " is big" * (
            spec.folder in ("CoLA", "SST-2")
        )
        assert (not examples.texts_b) == (spec.folder in ("CoLA", "SST-2"))
    for split in glue.submission_files(spec.name):
        examples = found.read_unlabeled(spec.file(str(archive), split), test=True)
        assert len(examples) == 1 and examples.labels == []


@pytest.mark.parametrize(
    "folder, split, columns, labels",
    [
        ("CoLA", "validation", ("sentence", ""), {"unacceptable": 0, "acceptable": 1}),
        ("MRPC", "validation", ("sentence1", "sentence2"), {"not_equivalent": 0, "equivalent": 1}),
        ("MNLI", "validation_matched", ("premise", "hypothesis"), {"entailment": 1, "neutral": 2}),
        ("STS-B", "validation", ("sentence1", "sentence2"), {"2.5": 2.5}),
    ],
)
def test_data_sets_on_the_hub(folder, split, columns, labels, vocabulary, monkeypatch):
    monkeypatch.setattr(hub, "data_files", lambda *given: given)
    spec = next(spec for spec in tasks.GLUE if spec.folder == folder)
    assert spec.file("hf:nyu-mll/glue@v1", "dev") == f"hf:nyu-mll/glue:{spec.name}@v1,{split}"
    assert (spec.hub_columns.text_a, spec.hub_columns.text_b) == columns
    task = make_task(vocabulary, spec.name, spec.labels)
    assert {name: task.parse_label(name) for name in labels} == labels


def test_the_zip_is_what_the_server_takes(tmp_path):
    files = {
        "STS-B.tsv": glue.submission_file(["0", "1"], np.float32([[-1.0], [2.34567]]), None),
        "RTE.tsv": glue.submission_file(["7"], np.float32([[0.2, 0.8]]), ("entailment", "not_entailment")),
    }
    missing = glue.write_submission(str(tmp_path / "s.zip"), files)
    assert "AX.tsv" in missing and "MNLI-mm.tsv" in missing and len(missing) == 9
    with zipfile.ZipFile(tmp_path / "s.zip") as archive:
        assert archive.read("STS-B.tsv").decode() == "index\tprediction\n0\t0.000\n1\t2.346\n"
        assert archive.read("RTE.tsv").decode() == "index\tprediction\n7\tnot_entailment\n"


def test_the_average_is_over_tasks():
    scores = {
        "cola": {"matthews": 0.5, "accuracy": 0.9},
        "mrpc": {"accuracy": 0.8, "f1": 0.9},
        "mnli": {"accuracy": 0.65},
    }
    assert glue.average(scores) == pytest.approx((0.5 + 0.85 + 0.65) / 3)
    assert glue.table(scores)[-1].startswith("average   0.6667 over 3 tasks")
    scores["mrpc"]["mean_squared_error"] = 7.0  # no metric of GLUE
    assert glue.average(scores) == pytest.approx((0.5 + 0.85 + 0.65) / 3)
