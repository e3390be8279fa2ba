"""The counts of tokens in records and in files."""

import numpy as np
import pytest
from support import google_records, processes

from bert_jax.data import records, token_counts


def test_counts_of_records(tmp_path):
    dataset = records.open_dataset(str(processes.write_records(tmp_path / "records")), "train")
    batch = dataset.batch(np.arange(len(dataset)))
    real = [ids[:length] for ids, length in zip(batch["input_ids"], batch["lengths"], strict=True)]
    counts = token_counts.count(dataset, 100)
    np.testing.assert_array_equal(counts, np.bincount(np.concatenate(real), minlength=100))
    some = token_counts.count(dataset, 100, limit=2 * 32)  # the first and the last row
    np.testing.assert_array_equal(some, np.bincount(np.concatenate([real[0], real[-1]]), minlength=100))


def test_masked_rows_count_as_they_were(tmp_path):
    vocab = google_records.write_vocabulary(tmp_path / "vocab.txt")
    google_records.write(tmp_path / "records" / "x.tfrecord", [google_records.example()])
    counts = token_counts.count(records.open_dataset(str(tmp_path / "records"), "train", vocab), 100)
    # [CLS] 9 10 [SEP] 11 [SEP], of which 9 was 7 and 11 was 8
    assert {token: count for token, count in enumerate(counts.tolist()) if count} == {
        2: 1, 7: 1, 10: 1, 3: 2, 8: 1,
    }  # fmt: skip


def test_the_loss_of_frequencies():
    known, counts = np.array([0, 3, 1, 0]), np.array([0, 1, 1, 2])
    # With 1 added to each, the shares are 1/8, 4/8, 2/8 and 1/8.
    assert token_counts.cross_entropy(counts, known) == pytest.approx(np.log([2, 4, 8, 8]).sum() / 4)
    # The entropy: no other frequencies have a lower loss.
    entropy = token_counts.cross_entropy(counts, counts, smoothing=0)
    assert entropy == pytest.approx(np.log([4, 4, 2, 2]).sum() / 4)
    assert entropy < token_counts.cross_entropy(counts, counts)
