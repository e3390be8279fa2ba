"""What `bert-jax inspect` says of sound and of damaged records, vocabularies and checkpoints."""

import os

import numpy as np
import pytest
from support import processes
from support.google_records import inspect

from bert_jax import tokenization
from bert_jax.data import manifests, packed, tfrecord

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]


def sound_rows(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        row = []
        for _ in range(rng.integers(1, 3)):
            first, second = (rng.integers(5, 100, rng.integers(1, 6)).tolist() for _ in range(2))
            ids = np.array([2, *first, 3, *second, 3], "<u2")
            row.append(packed.PackedSequence(ids, len(first) + 2, int(rng.random() < 0.53)))
        yield row


@pytest.fixture
def records(tmp_path):
    """Writes a record directory of given rows (by default 300 sound ones), and returns its path."""

    def make(rows=None):
        rows = list(sound_rows(300)) if rows is None else rows
        (tmp_path / "vocab.txt").write_text("\n".join(TOKENS) + "\n")
        vocabulary = tokenization.load(tmp_path / "vocab.txt").settings()
        splits = {"train": [rows[: len(rows) // 2], rows[len(rows) // 2 :]]}
        fields = {"vocabulary": vocabulary, "fingerprint": "f"}
        processes.write_splits(tmp_path / "records", splits, processes.LENGTH, **fields)
        os.rename(tmp_path / "vocab.txt", tmp_path / "records" / "vocab.txt")
        return str(tmp_path / "records")

    return make


def test_repeated_rows_are_told(records, capsys):
    rows = list(sound_rows(100))
    code, report = inspect(capsys, records(rows + rows[:30]))
    assert code == 1 and report["facts"]["train"]["duplicate_rows"] == 30


def test_sound_records(records, capsys):
    directory = records()
    code, report = inspect(capsys, directory)
    assert code == 0 and report["problems"] == [] and report["kind"] == "packed records"
    train, manifest = report["facts"]["train"], manifests.read(directory)["splits"]["train"]
    assert {name: train[name] for name in ("rows", "sequences", "tokens", "random_next")} == {
        name: manifest[name] for name in ("rows", "sequences", "tokens", "random_next")
    }
    assert train["duplicate_rows"] == train["damaged_rows"] == 0 and train["unknown_share"] == 0


def test_damage_is_told_with_file_and_offset_and_the_rest_is_read(records, capsys):
    directory = records()
    path = os.path.join(directory, "train-00001-of-00002.tfrecord")
    offsets = tfrecord.RecordFile(path).offsets
    with open(path, "r+b") as file:
        for number in (7, 100):
            file.seek(offsets[number] + 40)
            file.write(b"\xff\xff")
    code, report = inspect(capsys, directory)
    assert code == 1 and report["facts"]["train"]["rows"] == 298
    assert len(report["problems"]) == 2
    for number, text in zip((7, 100), report["problems"], strict=True):
        assert f"{path} at byte {offsets[number]}: the CRC of the data is wrong" in text
    os.truncate(path, int(offsets[120]) + 5)
    code, report = inspect(capsys, directory)
    assert code == 1 and report["facts"]["train"]["rows"] == 150 and len(report["problems"]) == 1
    assert f"{path} at byte {offsets[120]}: the file ends inside" in report["problems"][0]


def test_another_vocabulary_than_that_of_the_records(records, tmp_path, capsys):
    directory = records()
    (tmp_path / "other.txt").write_text("\n".join([*TOKENS, "w95"]) + "\n")
    (tmp_path / "same.txt").write_text("\n".join(TOKENS) + "\n")
    code, report = inspect(capsys, directory, f"--vocab={tmp_path}/same.txt")
    assert code == 0 and report["problems"] == []
    code, report = inspect(capsys, directory, f"--vocab={tmp_path}/other.txt")
    assert code == 1 and len(report["problems"]) == 1
    assert "other.txt is not the vocabulary of these records" in report["problems"][0]
