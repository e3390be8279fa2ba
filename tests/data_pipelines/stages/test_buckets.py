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


@pytest.mark.parametrize(
    "histogram, held_out",
    [
        ({0: (2, 8), 40_000: (5, 9)}, 0),  # of fewer than 8 documents, none
        ({0: (1, 4), 40_000: (7, 9)}, (40_000 << 48) + 8),  # the two with the smallest keys
        ({0: (2, 8), 40_000: (6, 9)}, 6554 << 48),  # 10% of the bins of keys, rounded up
        ({6553: (2, 8), 40_000: (6, 9)}, 6554 << 48),
        ({6554: (2, 8), 40_000: (6, 9)}, (40_000 << 48) + 8),
    ],
)
def test_the_keys_that_are_held_out(tmp_path, histogram, held_out):
    result = tokenized(tmp_path, histogram, [5, (40_000 << 48) + 7])
    planned = buckets.plan([result], 0.1)
    edges = [(bucket.split, bucket.low, bucket.high) for bucket in planned]
    assert edges == [("eval", 0, held_out)] * bool(held_out) + [("train", held_out, 1 << 64)]
