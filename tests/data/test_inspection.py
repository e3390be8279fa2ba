"""What `bert-jax inspect` says of sound and of damaged records, vocabularies and checkpoints."""

import json
import os

import numpy as np
import pytest

from bert_jax import cli, tokenization
from bert_jax.data import manifests, packed, tfrecord

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]


def row(*pairs):
    """Sequences of (A, B, label)."""
    sequences = []
    for first, second, label in pairs:
        ids = np.array([2, *first, 3, *second, 3], "<u2")
        sequences.append(packed.PackedSequence(ids, len(first) + 2, label))
    return sequences


def sound_rows(count, rng):
    def words(low, high):
        return rng.integers(5, 100, rng.integers(low, high)).tolist()

    return [
        row(*((words(1, 6), words(1, 6), int(rng.random() < 0.53)) for _ in range(rng.integers(1, 3))))
        for _ in range(count)
    ]


@pytest.fixture
def records(tmp_path):
    """Writes a record directory of given rows (by default 300 sound ones), and returns its path."""

    def make(rows=None, tokens=TOKENS, **manifest):
        rows = sound_rows(300, np.random.default_rng(0)) if rows is None else rows
        directory = tmp_path / "records"
        directory.mkdir(exist_ok=True)
        (directory / "vocab.txt").write_text("\n".join(tokens) + "\n")
        tokenizer = tokenization.load(str(directory / "vocab.txt"))
        files = []
        for number, part in enumerate((rows[: len(rows) // 2], rows[len(rows) // 2 :])):
            name = f"train-{number:05d}-of-00002.tfrecord"
            count, size = tfrecord.write_records(str(directory / name), map(packed.encode_row, part))
            files.append({"name": name, "rows": count, "bytes": size})
        sequences = [sequence for one in rows for sequence in one]
        train = {
            "files": files,
            "documents": len(rows),
            "rows": len(rows),
            "sequences": len(sequences),
            "tokens": sum(len(s.ids) for s in sequences),
            "random_next": sum(s.next_sentence_label for s in sequences),
        }
        content = {
            "schema": "packed",
            "version": 1,
            "max_seq_length": 32,
            "max_sequences_per_row": 4,
            "vocabulary": tokenizer.settings() | {"file": "vocab.txt"},
            "fingerprint": "f",
            "special_ids": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
            "sources": [],
            "splits": {"train": train | manifest.pop("train", {})},
        }
        (directory / "manifest.json").write_text(json.dumps(content | manifest))
        return str(directory)

    return make


def inspect(capsys, *arguments):
    """(exit code, report) of one path."""
    code = cli.main(["inspect", "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_repeated_rows_are_told(records, capsys):
    rows = sound_rows(100, np.random.default_rng(0))
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
    assert sum(n * count for n, count in enumerate(train["sequences_per_row"])) == train["sequences"]
    assert sum(n * count for n, count in enumerate(train["sequence_lengths"])) == train["tokens"]


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
