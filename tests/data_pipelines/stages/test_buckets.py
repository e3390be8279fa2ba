"""Buckets of documents: their sizes are bounded, and they cover all keys."""

import itertools

import numpy as np
import pytest

from data_pipelines import sorted_runs
from data_pipelines.stages import buckets


def tokenized(folder, histogram, smallest_keys=()):
    """What `buckets.plan` reads of the results of `tokenizing.tokenize`."""
    values = sorted_runs.new_histogram()
    for number, counts in histogram.items():
        values[number] = counts
    sorted_runs.write_histogram(str(folder / "histogram"), values)
    return {"histogram": str(folder / "histogram"), "smallest_keys": list(smallest_keys)}


def test_many_documents_in_bounded_buckets(tmp_path):
    rng = np.random.default_rng(0)
    histogram = {
        int(b): (5, 5 * int(rng.integers(100, 5000))) for b in rng.choice(1 << 16, 30_000, replace=False)
    }
    planned = buckets.plan([tokenized(tmp_path, histogram)], 0.01)
    train = [bucket for bucket in planned if bucket.split == "train"]
    assert [b.number for b in train] == list(range(len(train))) and len(train) > 20
    assert planned[0].low == 0 and planned[-1].high == 1 << 64
    assert all(a.high == b.low for a, b in itertools.pairwise(planned))
    for bucket in planned:
        tokens = sum(t for b, (_, t) in histogram.items() if bucket.low <= b << 48 < bucket.high)
        assert tokens < 2 * buckets.BUCKET_TOKENS[0]
    share = sum(b.high - b.low for b in planned if b.split == "eval") / 2**64
    assert share == pytest.approx(0.01, abs=1e-4)


def test_buckets_of_tiny_documents_are_bounded(tmp_path):
    bins = range(0, 1 << 16, 16)
    planned = buckets.plan([tokenized(tmp_path, dict.fromkeys(bins, (10_000, 20_000)))], 0.0)
    most = max(sum(bucket.low <= b << 48 < bucket.high for b in bins) for bucket in planned)
    assert len(planned) > 20 and 10_000 * most < 1.6 * buckets.MOST_BUCKET_DOCUMENTS


def test_what_is_left_over_joins_the_last_bucket(tmp_path):
    size = buckets.BUCKET_TOKENS[0]
    for documents, tokens in [(100, size // 4), (10, size)]:
        result = tokenized(tmp_path, {0: (100, size), 20_000: (100, size), 60_000: (documents, tokens)})
        assert [(b.low >> 48, b.high >> 48) for b in buckets.plan([result], 0.0)] == [(0, 1), (1, 1 << 16)]
