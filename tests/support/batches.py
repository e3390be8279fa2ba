"""Functions that take the first batches of a loader and compare batches of two loaders."""

import itertools

import numpy as np


def take(iterator, count):
    batches = list(itertools.islice(iterator, count))
    iterator.close()
    return batches


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name], err_msg=name)
