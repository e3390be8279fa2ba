"""GLUE: the files of every task, the table over several runs, and the zip for the server."""

import types
import zipfile

import numpy as np
import pytest

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks import fields, glue, setup

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


def make(name, archive, vocabulary):
    from support.tiny_model import tiny_config

    from bert_jax import tokenization

    config = tasks.default_config("tiny")
    config.task, config.data_dir = name, str(archive)
    config = fields.of_run(config)
    spec, tokenizer = tasks.get(name), tokenization.load(vocabulary)
    bert = tiny_config(tokenizer.vocab_size)
    return spec.task(
        fields.of_task(config), spec, spec.labels, tokenizer, bert
    ), lambda split: setup.split_file(config, spec, split)


@pytest.mark.parametrize("spec", tasks.GLUE, ids=lambda spec: spec.name)
def test_every_file_of_the_archive_is_read(spec, archive, vocabulary):
    found, file = make(spec.name, archive, vocabulary)
    for split in ("train", "dev", *(["dev_mismatched"] if spec.name == "mnli" else [])):
        examples = found.read(file(split))
        label = {"stsb": 2.5, "mnli": 2, "qnli": 1, "rte": 0, "qqp": 0}.get(spec.name, 1)
        assert examples.labels == [label] and examples.texts_a[0] == "the cat" + " is big" * (
            spec.folder in ("CoLA", "SST-2")
        )
        assert (not examples.texts_b) == (spec.folder in ("CoLA", "SST-2"))
    for split in glue.submission_files(spec.name):
        examples = found.read_unlabeled(file(split), test=True)
        assert len(examples) == 1 and examples.labels == []


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """prepare(archive, config): tensorflow-datasets' own builder of GLUE makes a data set of those files."""
    tfds = pytest.importorskip("tensorflow_datasets")
    glue_builder = pytest.importorskip("tensorflow_datasets.text.glue").Glue
    root = tmp_path / "prepared"
    monkeypatch.setenv("TFDS_DATA_DIR", str(root))

    def call(archive, config):
        found = types.SimpleNamespace(
            download_and_extract=lambda url: str(archive),
            download=lambda url: str(archive / "MNLI" / "diagnostic.tsv"),  # of ax
            downloaded_size=0,
        )
        monkeypatch.setattr(glue_builder, "_make_download_manager", lambda *unused, **options: found)
        glue_builder(config=config, data_dir=str(root), file_format="array_record").download_and_prepare()
        return root

    assert tfds
    return call


# Labels of all classes, in an order that is not the hash of the row's number.
LABELS = {
    "CoLA": ["1", "0", "1"],
    "MNLI": ["neutral", "contradiction", "entailment"],
}


@pytest.mark.parametrize("folder", LABELS)
def test_a_prepared_data_set_is_what_the_files_are(folder, archive, prepare, vocabulary):
    train, _test = ROWS[folder]
    head, row = train.split("\n") if "\n" in train else (None, train)
    last = row.split("\t")[1] if folder == "CoLA" else row.split("\t")[-1]
    words, labels = ("cat", "dog", "bird"), LABELS[folder]
    rows = [row.replace(last, label).replace("cat", word) for word, label in zip(words, labels, strict=True)]
    dev = ["dev_matched", "dev_mismatched"] if folder == "MNLI" else ["dev"]
    for number, name in enumerate(["train", *dev]):
        lines = rows[number:] + rows[:number]
        (archive / folder / f"{name}.tsv").write_text("\n".join([head, *lines] if head else lines) + "\n")
    spec = next(spec for spec in tasks.GLUE if spec.folder == folder)
    prepare(archive, spec.name)
    files, file = make(spec.name, archive, vocabulary)
    data_sets, prepared_split = make(spec.name, "tfds:", vocabulary)
    for split in ("train", "dev", *dev):
        expected, found = files.read(file(split)), data_sets.read(prepared_split(split))
        assert (found.texts_a, found.texts_b) == (expected.texts_a, expected.texts_b)
        assert np.float32(found.labels).tolist() == np.float32(expected.labels).tolist()
        assert found.ids == ["0", "1", "2"]
    test_split = "test_mismatched" if folder == "MNLI" else "test"
    path = prepared_split(test_split)
    found = data_sets.read_unlabeled(path, test=True)
    expected = files.read_unlabeled(file(test_split), test=True)
    assert found.labels == [] and (found.texts_a, found.texts_b) == (expected.texts_a, expected.texts_b)
    with pytest.raises(UserError, match="a split without labels"):
        data_sets.read(path)


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
    with pytest.raises(UserError, match=r"cola: .*matthews"):
        glue.average({"cola": {"accuracy": 0.9}})
