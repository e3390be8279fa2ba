"""Valid record files that do not match their manifest."""

import os

import pytest

from bert_jax.data import records, tfrecord
from bert_jax.errors import UserError


def rewrite(path, change):
    payloads = list(tfrecord.RecordFile(path))
    change(payloads)
    tfrecord.write_records(path, payloads)


def replace(payloads):
    payloads[3] = next(other for other in payloads if other != payloads[3] and len(other) == len(payloads[3]))


def swap(payloads):
    other = next(i for i, one in enumerate(payloads) if one != payloads[3] and len(one) == len(payloads[3]))
    payloads[3], payloads[other] = payloads[other], payloads[3]


@pytest.mark.parametrize("change", [replace, swap, list.reverse])
@pytest.mark.parametrize("checked_before", [False, True])
def test_replaced_and_reordered_records(make_records, change, checked_before):
    directory, _ = make_records(splits=(("train", (400,)),))
    path = os.path.join(directory, "train-00000-of-00001.tfrecord")
    if checked_before:
        records.open_dataset(directory, "train")
    size = os.path.getsize(path)
    rewrite(path, change)
    assert os.path.getsize(path) == size
    with pytest.raises(UserError, match=r"train-.* is not the file") as caught:
        records.open_dataset(directory, "train")
    assert "\n" not in str(caught.value)


def test_a_file_is_checked_once(make_records, monkeypatch):
    directory, _ = make_records()
    read = []
    digest = tfrecord.RecordFile.digest
    monkeypatch.setattr(
        tfrecord.RecordFile, "digest", lambda self: read.append(os.path.basename(self.path)) or digest(self)
    )
    for _ in range(3):
        records.open_dataset(directory, "train")
    assert read == ["train-00000-of-00002.tfrecord", "train-00001-of-00002.tfrecord"]
    records.open_dataset(directory, "eval")
    assert len(read) == 3
    os.utime(os.path.join(directory, read[0]))
    records.open_dataset(directory, "train")
    assert len(read) == 4
