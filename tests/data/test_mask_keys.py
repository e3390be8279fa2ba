"""The keys of masks that are used again: functions of the seed, the row and its copy, wherever it is read."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data import loader, records
from bert_jax.settings.pretrain_config import Ramp


@pytest.fixture
def dataset(make_records):
    return records.open_dataset(make_records()[0], "train")


def take(count, *arguments, **options):
    batches = loader.train_batches(*arguments, **options)
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


@given(
    rows=st.lists(st.integers(0, 2**62), min_size=1, max_size=20, unique=True),
    copy=st.integers(0, 2**31),
    seed=st.integers(0, 2**64 - 1),
)
@settings(deadline=None, max_examples=50)
def test_keys_are_elementwise_and_differ_from_row_to_row(rows, copy, seed):
    keys = loader.mask_keys(np.array(rows), np.full(len(rows), copy), seed)
    assert keys.dtype == np.uint32 and keys.shape == (len(rows), 2)
    assert len({tuple(key) for key in keys.tolist()}) == len(rows)
    for row, key in zip(rows, keys, strict=True):
        np.testing.assert_array_equal(loader.mask_keys(np.array([row]), np.array([copy]), seed)[0], key)


def test_keys_differ_by_copy_and_seed_and_are_uniform():
    rows = np.arange(1000)
    cases = [loader.mask_keys(rows, np.full(1000, copy), seed) for copy in range(4) for seed in range(4)]
    keys = np.concatenate(cases)
    assert len({tuple(key) for key in keys.tolist()}) == len(keys)
    ones = np.unpackbits(keys.view(np.uint8), axis=1).mean(axis=0)  # of each of the 64 bits
    assert abs(ones - 0.5).max() < 0.025
    draws = jax.vmap(lambda key: jax.random.uniform(jax.random.wrap_key_data(key)))(keys[:4000])
    assert abs(np.histogram(draws, bins=10, range=(0, 1))[0] - 400).max() < 100


def test_known_answer():
    """Runs that are resumed must find the masks that they began with: these numbers may never change."""
    keys = loader.mask_keys(np.array([0, 1, 10**12]), np.array([0, 0, 3]), seed=7)
    assert keys.tolist() == [
        [2701999949, 3730757320],
        [1092842020, 3585891154],
        [962133403, 3310294020],
    ]


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_an_epoch_has_the_keys_of_its_copy(dataset, copies):
    n, seed = len(dataset), 3
    keys = np.concatenate(
        [batch["mask_keys"] for batch in take(5 * n // 8 + 1, dataset, 8, seed, 0, mask_copies=copies)]
    )
    for epoch in range(5):
        rows = loader.permute(np.arange(n), n, seed, epoch)
        expected = loader.mask_keys(rows, np.full(n, epoch % copies), seed)
        np.testing.assert_array_equal(keys[epoch * n : (epoch + 1) * n], expected)


def test_keys_do_not_depend_on_the_start_the_processes_or_the_sizes_of_batches(dataset):
    ramp = Ramp((0, 3, 7), (4, 8, 16))
    whole = [batch["mask_keys"] for batch in take(12, dataset, ramp, 3, 0, mask_copies=2)]
    single = take(sum(map(len, whole)), dataset, 1, 3, 0, mask_copies=2)
    np.testing.assert_array_equal(np.concatenate(whole), np.concatenate([one["mask_keys"] for one in single]))
    for k in range(2):
        own = take(7, dataset, ramp, 3, 5, lambda size, k=k: np.arange(k, size, 2), mask_copies=2)
        for batch, all_rows in zip(own, whole[5:], strict=True):
            np.testing.assert_array_equal(batch["mask_keys"], all_rows[k::2])
