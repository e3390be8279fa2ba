"""Files of predictions, which are written row by row."""

import tracemalloc

import numpy as np
import pytest

from bert_jax.tasks.predictions import ClassPredictions
from bert_jax.tasks.readers.tables import Examples


@pytest.fixture
def peak():
    """peak(): the largest number of bytes allocated since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl"])
def test_a_file_is_not_held_in_memory(tmp_path, suffix, peak):
    count, labels = 4000, [f"label {number}" for number in range(20)]
    ids, places = [str(number) for number in range(count)], list(range(count))
    outputs = np.random.default_rng(0).random((count, len(labels)), np.float32)
    predictions = ClassPredictions(Examples("x", ids, ids, [], [], places), outputs, np.empty(0), labels)
    before = peak()
    predictions.write(str(tmp_path / f"out.{suffix}"))
    assert peak() - before < 2 << 20  # one of which is the buffer of the file
    assert len((tmp_path / f"out.{suffix}").read_text().splitlines()) == count + (suffix != "jsonl")
