import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.encoded import rows
from support.word_examples import WordTokenizer, examples

from bert_jax.tasks.rows import assembly, batches, packing


def random_data(n, seed=0, max_seq_length=128, max_words=140):
    lengths = np.random.default_rng(seed).integers(0, max_words, n)
    texts = [" ".join("x" * (1 + i % 7) for _ in range(length)) for i, length in enumerate(lengths)]
    return assembly.encode(examples(texts, labels=list(range(n))), WordTokenizer(), max_seq_length)


@settings(max_examples=300)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_truncation_is_the_reference_loop(a, b, budget):
    length_a, length_b = a, b
    while length_a + length_b > budget:  # google-research/bert run_classifier.py, _truncate_seq_pair
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    assert assembly.truncate_pair(a, b, budget) == (length_a, length_b)


def test_encoding():
    data = assembly.encode(examples(["a bb", "ccc"], ["d", "ee f"], [1, 0]), WordTokenizer(), 16)
    assert data.tokens.tolist() == [1, 11, 12, 2, 11, 2, 1, 13, 2, 12, 11, 2]
    assert (data.offsets.tolist(), data.first_lengths.tolist()) == ([0, 6, 12], [4, 3])
    targets = data.targets["targets"]
    assert (targets.tolist(), targets.dtype, data.truncated) == ([1, 0], np.int32, 0)
    single = assembly.encode(examples(["a bb ccc", ""]), WordTokenizer(), 4)
    assert (single.tokens.tolist(), single.offsets.tolist()) == ([1, 11, 12, 2, 1, 2], [0, 4, 6])
    assert (single.first_lengths.tolist(), single.targets, single.truncated) == ([4, 2], {}, 1)


def test_batches_hold_the_tokens_and_padding_has_no_weight():
    data = assembly.encode(examples(["a bb", "ccc"], ["d", "ee f"], [1, 0]), WordTokenizer(), 16)
    batch = batches.make_batch(data, np.array([1, 0, -1]), (4, 8, 16))
    assert batch["input_ids"].tolist() == [[1, 13, 2, 12, 11, 2, 0, 0], [1, 11, 12, 2, 11, 2, 0, 0], [0] * 8]
    assert batch["lengths"].tolist() == [6, 6, 0]
    assert batch["first_lengths"].tolist() == [3, 4, 0]
    assert batch["targets"].tolist() == [0, 1, 0]
    assert batch["weights"].tolist() == [1, 1, 0]
    assert batch["row_ids"].tolist() == [0, 1, 2]


def test_bucket_lengths():
    short, long = [9] * 320, [60] * 320
    assert batches.bucket_lengths(short + long, 32, 128) == (16, 64)
    assert batches.bucket_lengths([9, 60], 32, 128) == (64,)  # too few to be worth two compilations
    assert batches.bucket_lengths(short + long, 32, 128, batches=7) == (64,)  # of a run shorter than an epoch
    assert batches.bucket_lengths(short + long, 32, 128, batches=100) == (16, 64)
    saved = 320 * (64 - 16)
    assert batches.bucket_lengths(short + long, 32, 128, least=saved) == (16, 64)
    assert batches.bucket_lengths(short + long, 32, 128, least=saved + 1) == (64,)  # not worth a compilation
    assert batches.bucket_lengths([100] * 320, 32, 100) == (100,)
    assert batches.bucket_lengths([], 32, 128) == (8,)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("n, batch_size", [(1, 4), (64, 8), (1001, 8), (5, 8)])
def test_an_epoch_holds_every_example_once(n, batch_size, grouped):
    data = random_data(n)
    steps = batches.steps_per_epoch(n, batch_size)
    for epoch in range(2):
        order = batches.epoch_order(data.lengths, batch_size, 3, epoch, grouped)
        assert order.shape == (steps, batch_size)
        assert sorted(order[order >= 0].tolist()) == list(range(n))
    if n > 8:
        assert (batches.epoch_order(data.lengths, batch_size, 3, 0, grouped) != order).any()
        assert (batches.epoch_order(data.lengths, batch_size, 4, 1, grouped) != order).any()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("n", [8, 9, 10, 17])
def test_no_batch_has_fewer_groups_than_it_needs(n, packed):
    data = dataclasses.replace(random_data(n), least_groups=2)
    steps = batches.steps_per_epoch(n, 4)
    shape = packing.Packing(128, 1, (4,), 1, 1.0)
    stream = packing.train_batches(data, shape, 4, 3, 0) if packed else batches.train_batches(data, 4, 3, 0)
    for _ in range(2):
        epoch = list(itertools.islice(stream, steps))
        groups = [batch["targets"][batch["weights"] > 0].tolist() for batch in epoch]
        assert min(len(set(of_batch)) for of_batch in groups) >= 2
        assert sum(map(len, groups)) == n + (n % 4 == 1) and set(itertools.chain(*groups)) == set(range(n))


def test_a_batch_is_a_function_of_seed_and_step():
    data = random_data(101)
    steps = batches.steps_per_epoch(101, 8)
    straight = list(itertools.islice(batches.train_batches(data, 8, 5, 0), 3 * steps))
    for start in (0, 1, steps - 1, steps, 2 * steps + 3):
        again = next(batches.train_batches(data, 8, 5, start))
        for name, array in again.items():
            np.testing.assert_array_equal(array, straight[start][name])


def test_processes_share_a_batch_and_its_padded_length():
    data = random_data(50)
    whole = next(batches.train_batches(data, 8, 5, 0))
    owned = np.array([[0, 1, 4, 5], [2, 3, 6, 7]])
    parts = [next(batches.train_batches(data, 8, 5, 0, local_rows=own)) for own in owned]
    for name, array in whole.items():
        found = np.concatenate([part[name] for part in parts])
        np.testing.assert_array_equal(found, array[owned.ravel()])


def grouped(lengths, group):
    """Rows of these lengths, whose tokens are the row's number, with a target a row and one a token."""
    number = np.arange(len(lengths), dtype=np.int32)
    tokens = np.repeat(number, lengths)
    targets = {"targets": {"pair": np.stack([number, number + 100], axis=1)}}
    tags = {"token_targets": {"tags": tokens + 7}}
    return rows(lengths, tokens=tokens, rows_per_example=group, **targets, **tags)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.randoms())
def test_groups_stay_side_by_side(group, count, batch_size, random):
    data = grouped([random.randint(2, 16) for _ in range(group * count)], group)
    seen = []
    for groups in batches.eval_order(data, batch_size):
        batch = batches.make_batch(data, groups, (16,))
        assert batch["weights"].shape == ((batch_size, group) if group > 1 else (batch_size,))
        flat = batch["weights"].ndim
        batch = {name: x.reshape(-1, *x.shape[flat:]) for name, x in batch.items()}
        real = batch["weights"] > 0
        numbers = batch["pair"][real, 0]
        assert np.all(batch["pair"][~real] == 0)
        assert np.all(numbers.reshape(-1, group) == numbers[::group, None] + np.arange(group))
        assert np.array_equal(batch["pair"][real, 1], numbers + 100)
        for row, number in zip(np.flatnonzero(real), numbers, strict=True):
            length = batch["lengths"][row]
            assert np.all(batch["input_ids"][row, :length] == number)
            assert np.all(batch["tags"][row, :length] == number + 7)
            assert np.all(batch["tags"][row, length:] == batches.NO_TARGET)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(group * count))
