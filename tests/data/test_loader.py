"""The row order is a pure function of (seed, step, row), independent of restarts and process count."""

import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import assert_same, take

from bert_jax.data import loader, records
from bert_jax.errors import UserError
from bert_jax.settings.pretrain_config import Ramp

SEEDS = st.integers(min_value=0, max_value=2**64 - 1)


@given(n=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 2**40))
@settings(deadline=None, max_examples=50)
def test_permute_is_a_bijection(n, seed, epoch):
    assert sorted(loader.permute(np.arange(n), n, seed, epoch).tolist()) == list(range(n))


def test_permute_known_answer():
    # Resumed runs must continue in the order they started with, so these numbers must never change.
    assert loader.permute(np.arange(10), 10, seed=0, epoch=0).tolist() == [2, 6, 1, 8, 5, 3, 0, 4, 9, 7]
    far = loader.permute(np.arange(4), 10**12, seed=7, epoch=3).tolist()
    assert far == [330476358340, 400035425034, 952845388900, 900858949603]


class Numbers:
    """A data set in which each row is its own number."""

    is_remote = False

    def __init__(self, n):
        self._n = n

    def __len__(self):
        return self._n

    def batch(self, indices):
        return {"row": indices}


def rows_of_steps(n, batch_size, seed, steps):
    """Returns the row numbers of each of the first `steps` steps."""
    batches = loader.train_batches(Numbers(n), batch_size, seed, start_step=0, prefetch=0)
    return [batch["row"] for batch in take(batches, steps)]


@pytest.mark.long
@given(n=st.integers(1, 60), batch=st.integers(1, 150), seed=SEEDS)
@settings(deadline=None, max_examples=40)
def test_epochs_cover_every_row_once(n, batch, seed):
    steps = -(-3 * n // batch) + 1
    rows = np.concatenate(rows_of_steps(n, batch, seed, steps))
    assert len(rows) == steps * batch
    for epoch in range(len(rows) // n):
        own = rows[epoch * n : (epoch + 1) * n]
        assert sorted(own.tolist()) == list(range(n))
        np.testing.assert_array_equal(own, loader.permute(np.arange(n), n, seed, epoch))


@pytest.fixture
def dataset(make_records):
    return records.open_dataset(make_records()[0], "train")


def test_batches_are_the_rows_of_their_step(dataset):
    batches = take(loader.train_batches(dataset, 8, seed=3, start_step=0), 20)
    for batch, rows in zip(batches, rows_of_steps(len(dataset), 8, 3, 20), strict=True):
        assert_same([batch], [dataset.batch(rows)])
        assert batch["row_ids"].dtype == np.int32


def joined(parts, owned):
    order = np.argsort(np.concatenate(owned))
    return [
        {name: np.concatenate([p[name] for p in batch])[order] for name in batch[0]}
        for batch in zip(*parts, strict=True)
    ]


@pytest.mark.parametrize("processes", [1, 2, 4, 8])
@pytest.mark.parametrize("stretches", [True, False])
def test_rows_of_the_processes_make_the_global_batch(dataset, processes, stretches):
    def owned(size):
        order = "C" if stretches else "F"
        return np.arange(size).reshape((processes, -1), order=order)

    expected = take(loader.train_batches(dataset, 8, seed=3, start_step=5), 10)
    parts = [take(loader.train_batches(dataset, 8, 3, 5, own), 10) for own in owned(8)]
    assert_same(joined(parts, owned(8)), expected)
    parts = [list(loader.eval_batches(dataset, 24, own)) for own in owned(24)]
    assert_same(joined(parts, owned(24)), list(loader.eval_batches(dataset, 24)))


@pytest.mark.parametrize("batch_size", [1, 7, 21, 63, 64, 100])
def test_eval_gives_every_row_once_in_order(dataset, batch_size):
    batches = list(loader.eval_batches(dataset, batch_size))
    assert len(batches) == -(-63 // batch_size)
    assert {batch["input_ids"].shape for batch in batches} == {(batch_size, 32)}
    every = dataset.batch(np.arange(63))
    for name in set(every) - {"row_ids"}:
        joined = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(joined[:63], every[name])
        if name == "lengths":
            assert (joined[63:] == 0).all()
    assert all(batch["row_ids"].tolist() == list(range(batch_size)) for batch in batches)


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bert_jax-loader")]


def test_an_error_arrives_in_its_turn_and_ends_the_threads(dataset):
    path, offset = dataset.locate(int(rows_of_steps(len(dataset), 8, 0, 4)[3][0]))
    with open(path, "r+b") as file:
        file.seek(offset + 30)
        file.write(b"\xff\xff\xff")
    batches = loader.train_batches(dataset, 8, seed=0, start_step=0)
    for _ in range(3):
        next(batches)
    with pytest.raises(UserError, match=f"at byte {offset}"):
        next(batches)
    assert not loader_threads()


def test_marked_batches_have_an_entry_more(dataset):
    marks = {"first": Ramp((0, 3), (1, 0)), "never": Ramp.constant(0)}
    plain, marked = (take(loader.train_batches(dataset, 8, 3, 0, marks=each), 5) for each in (None, marks))
    for step, (batch, other) in enumerate(zip(marked, plain, strict=True)):
        mark = batch.pop("first", None)
        assert (mark is not None) == (step < 3)
        assert mark is None or (mark.dtype, mark.tolist()) == (np.int32, [1] * 8)
        assert_same([batch], [other])


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
    ones = np.unpackbits(keys.view(np.uint8), axis=1).mean(axis=0)  # for each of the 64 bits
    assert abs(ones - 0.5).max() < 0.025
    draws = jax.vmap(lambda key: jax.random.uniform(jax.random.wrap_key_data(key)))(keys[:4000])
    assert abs(np.histogram(draws, bins=10, range=(0, 1))[0] - 400).max() < 100


def test_known_keys():
    """Resumed runs must get the same masks as before, so these numbers must never change."""
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
        [
            batch["mask_keys"]
            for batch in take(loader.train_batches(dataset, 8, seed, 0, mask_copies=copies), 5 * n // 8 + 1)
        ]
    )
    for epoch in range(5):
        rows = loader.permute(np.arange(n), n, seed, epoch)
        expected = loader.mask_keys(rows, np.full(n, epoch % copies), seed)
        np.testing.assert_array_equal(keys[epoch * n : (epoch + 1) * n], expected)
