"""Packed rows: batches from records, and errors for every kind of invalid directory."""

import os

import numpy as np
import pytest
from support import processes

from bert_jax.data import records, tf_example, tfrecord
from bert_jax.data.packed import best_fit
from bert_jax.errors import UserError


def expected_batch(rows, length, sequences=4):
    """Builds the batch row by row and value by value."""
    batch = {
        "input_ids": np.zeros((len(rows), length), np.int32),
        "lengths": np.zeros(len(rows), np.int32),
        "starts": np.full((len(rows), sequences), length, np.int32),
        "first_lengths": np.zeros((len(rows), sequences), np.int32),
        "next_sentence_labels": np.full((len(rows), sequences), -1, np.int32),
        "row_ids": np.arange(len(rows), dtype=np.int32),
    }
    for i, row in enumerate(rows):
        for j, sequence in enumerate(row):
            start = batch["lengths"][i]
            batch["input_ids"][i, start : start + len(sequence.ids)] = sequence.ids
            batch["starts"][i, j] = start
            batch["first_lengths"][i, j] = sequence.first_length
            batch["next_sentence_labels"][i, j] = sequence.next_sentence_label
            batch["lengths"][i] += len(sequence.ids)
    return batch


def assert_equal(batch, expected):
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        assert batch[name].dtype == np.int32, name
        np.testing.assert_array_equal(batch[name], value, err_msg=name)


@pytest.mark.parametrize("vocab_size", [1000, 65_535, 119_547])
def test_batches_hold_the_rows(make_records, vocab_size):
    directory, rows = make_records(vocab_size=vocab_size)
    dataset = records.open_dataset(directory, "train")
    assert len(dataset) == 63 and dataset.vocab_size == vocab_size
    assert (dataset.max_seq_length, dataset.max_sequences_per_row) == (32, 4)
    chosen = np.array([62, 0, 39, 40, 39])
    assert_equal(dataset.batch(chosen), expected_batch([rows["train"][i] for i in chosen], 32))
    chosen = np.array([3, -1, 10, -1])
    batch = records.open_dataset(directory, "eval").batch(chosen)
    assert_equal(batch, expected_batch([rows["eval"][3], [], rows["eval"][10], []], 32))


def test_several_directories_are_one_dataset(make_records):
    first, first_rows = make_records("first")
    second, second_rows = make_records("second", seed=1, splits=(("train", (5,)),), max_sequences_per_row=6)
    dataset = records.open_dataset(f"{first}, {second}", "train")
    rows = first_rows["train"] + second_rows["train"]
    assert len(dataset) == 68
    assert_equal(dataset.batch(np.arange(68)), expected_batch(rows, 32, sequences=6))
    train = dataset.manifest["splits"]["train"]
    assert train["rows"] == 68 and train["tokens"] == sum(len(s.ids) for row in rows for s in row)
    assert 0 < train["fill"] < 1 and sum(train["sequence_lengths"]) == train["sequences"]
    assert [source["name"] for source in dataset.manifest["sources"]] == ["first", "second"]
    assert len(records.open_dataset(f"{first},{second}", "eval")) == 11


COUNTS = dict.fromkeys(("documents", "rows", "sequences", "tokens", "random_next"), 3)


def test_files_that_are_not_the_manifests(make_records):
    directory, _ = make_records()
    path = os.path.join(directory, "train-00001-of-00002.tfrecord")
    rows = list(tfrecord.RecordFile(path))
    size = os.path.getsize(path)
    frame = b"\0" * tfrecord.FRAME_BYTES
    for other, count, change in (
        (rows[:-1], 22, -len(rows[-1]) - tfrecord.FRAME_BYTES),
        ([*rows[:-1], rows[-1] + b"x"], 23, 1),
        ([*rows[:-2], rows[-2] + frame + rows[-1]], 22, 0),
    ):
        tfrecord.write_records(path, other)
        message = f"has {count} records in {size + change:,} bytes; its manifest has 23 in {size:,}"
        with pytest.raises(UserError, match=message):
            records.open_dataset(directory, "train")
    os.unlink(path)
    with pytest.raises(UserError, match=r"00001-of-00002.tfrecord: cannot be read"):
        records.open_dataset(directory, "train")


def u2(*values):
    return np.array(values, "<u2").tobytes()


SOUND = {
    "input_ids": u2(*range(10, 30)),
    "starts": u2(0, 8),
    "first_lengths": u2(3, 9),
    "next_sentence_labels": u2(0, 1),
}


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        ({"input_ids": u2(*range(33))}, "longer than the manifest says"),
        ({"input_ids": SOUND["input_ids"] + b"x"}, "not a whole number"),
        ({"input_ids": u2(*range(10, 29), 1000)}, "the token id 1000 is outside the vocabulary of 1000"),
        ({"input_ids": None}, "no feature 'input_ids'"),
        ({"starts": b"", "first_lengths": b"", "next_sentence_labels": b""}, "do not fit"),
        (
            dict.fromkeys(("starts", "first_lengths", "next_sentence_labels"), u2(0, 1, 1, 1, 1)),
            "longer than the manifest says",
        ),
        ({"starts": u2(0, 20)}, "do not fit"),
        ({"first_lengths": u2(3, 12)}, "do not fit"),
        ({"first_lengths": u2(0, 9)}, "do not fit"),
        ({"next_sentence_labels": u2(0, 2)}, "do not fit"),
        # The second sequence begins after the last token, or is absent but has a label.
        ({"starts": u2(0, 20), "next_sentence_labels": u2(0, 0xFFFF)}, "do not fit"),
        ({"starts": u2(0, 20), "first_lengths": u2(3, 0)}, "do not fit"),
    ],
)
def test_rows_that_cannot_be(make_records, change, message):
    directory, _ = make_records(splits=(("train", (3,)),))
    path = os.path.join(directory, "train-00000-of-00001.tfrecord")
    features = {name: value for name, value in (SOUND | change).items() if value is not None}
    rows = list(tfrecord.RecordFile(path))
    rows[1] = tf_example.encode(features)
    _, size = tfrecord.write_records(path, rows)
    entry = {"name": os.path.basename(path), "rows": 3, "bytes": size}
    processes.change_manifest(directory, "splits", "train", value=COUNTS | {"files": [entry]})
    dataset = records.open_dataset(directory, "train")
    if message is None:
        assert dataset.batch(np.array([1]))["starts"].tolist() == [[0, 8, 32, 32]]
        return
    with pytest.raises(tfrecord.CorruptRecordError, match=message) as caught:
        dataset.batch(np.array([2, -1, 1, 0]))
    assert (caught.value.path, caught.value.offset) == dataset.locate(1)


def test_the_index_of_a_folder_that_cannot_be_written_is_in_a_cache(make_records, tmp_path, monkeypatch):
    directory, rows = make_records()
    for name in os.listdir(directory):
        if name.endswith(tfrecord.INDEX_SUFFIX):
            os.remove(os.path.join(directory, name))
    write_index = tfrecord.write_index

    def refuse(path, offsets):
        if path.startswith(directory):
            raise PermissionError
        write_index(path, offsets)

    monkeypatch.setattr(tfrecord, "write_index", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    records.open_dataset(directory, "train")
    monkeypatch.setattr(tfrecord.RecordFile, "_scan", None)  # reading without an index would call it
    again = records.open_dataset(directory, "train")
    assert len(again) == len(rows["train"])


def test_the_tightest_row_takes_the_longest_first():
    assert best_fit([50, 60, 40, 30, 10, 14], 64, 8) == [[1], [0, 5], [2, 4], [3]]
