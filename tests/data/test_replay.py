"""Replay: which rows of a batch come from the replay records, and which of these records they are."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import assert_same

from bert_jax.data import loader, records
from bert_jax.settings.pretrain_config import Ramp

SHARES = st.fractions(Fraction(1, 1000), Fraction(999, 1000), max_denominator=10**6)
SEED = 3


@pytest.fixture
def both(make_records):
    """Data sets with 63 rows and with 40 rows, each by row length."""

    def make(name, seed, rows):
        splits = (("train", (rows,)),)
        made = {n: make_records(f"{name}{n}", splits, length=n, seed=seed + n)[0] for n in (16, 32)}
        return {n: records.open_dataset(directory, "train") for n, directory in made.items()}

    return make("own", 0, 63), make("general", 1, 40)


@given(share=SHARES, start=st.integers(0, 10**12), count=st.integers(1, 500))
@settings(deadline=None, max_examples=100)
def test_the_share_is_exact_and_both_are_numbered_without_gaps(share, start, count):
    positions = np.arange(start, start + count)
    is_replay, numbers = loader.divide(positions, share)
    # Of the first n positions, floor(n * share) are replay, in integer arithmetic of any size.
    before = [int(position) * share.numerator // share.denominator for position in (start, start + count)]
    assert np.count_nonzero(is_replay) == before[1] - before[0]
    assert numbers[is_replay].tolist() == list(range(*before))
    assert numbers[~is_replay].tolist() == list(range(start - before[0], start + count - before[1]))
    # The result for a position does not depend on the other positions.
    for place in (0, count // 2, count - 1):
        assert loader.divide(positions[place], share) == (is_replay[place], numbers[place])


def test_the_seed_of_replay_never_changes():
    assert [loader.replay_seed(seed) for seed in (0, 7)] == [17370114826143972408, 18006829392174342476]


def take(count, start=0, **options):
    batches = loader.train_batches(seed=SEED, start_step=start, **options)
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


@pytest.mark.parametrize("copies", [0, 2])
def test_batches_are_the_rows_of_their_numbering(both, copies):
    """New and replayed rows have separate epochs, orders and masks."""
    own, general = (datasets[32] for datasets in both)
    share = Fraction(3, 10)
    batches = take(60, dataset=own, batch_size=8, replay=loader.Replay(general, share), mask_copies=copies)
    is_replay = np.concatenate([loader.divide(np.arange(8 * s, 8 * s + 8), share)[0] for s in range(60)])
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    for chosen, dataset, seed in (
        (~is_replay, own, SEED), (is_replay, general, loader.replay_seed(SEED))
    ):  # fmt: skip
        count, n = np.count_nonzero(chosen), len(dataset)
        epochs, inside = np.divmod(np.arange(count), n)
        assert epochs[-1] >= 2
        rows = np.array([loader.permute(i, n, seed, int(e)) for e, i in zip(epochs, inside, strict=True)])
        expected = dataset.batch(rows)
        for name in expected.keys() - {"row_ids"}:
            np.testing.assert_array_equal(whole[name][chosen], expected[name], err_msg=name)
        if copies:
            keys = loader.mask_keys(rows, epochs % copies, seed)
            np.testing.assert_array_equal(whole["mask_keys"][chosen], keys)
    assert loader.replay_seed(SEED) != SEED


@pytest.mark.parametrize("share", [None, Fraction(1, 10)])
def test_any_start_any_processes_and_any_sizes_of_batches(both, share):
    own, general = (datasets[32] for datasets in both)
    options = dict(dataset=own, replay=share and loader.Replay(general, share), mask_copies=2)
    ramp = Ramp((0, 3, 7), (4, 8, 16))
    whole = take(12, batch_size=ramp, **options)
    assert [len(batch["lengths"]) for batch in whole] == [4] * 3 + [8] * 4 + [16] * 5
    assert_same(take(7, start=5, batch_size=ramp, **options), whole[5:])
    rows = take(sum(len(batch["lengths"]) for batch in whole), batch_size=1, prefetch=0, **options)
    np.testing.assert_array_equal(
        np.concatenate([batch["input_ids"] for batch in whole]),
        np.concatenate([r["input_ids"] for r in rows]),
    )
    for k in range(4):  # some of them have no replay row in a batch
        part = take(12, batch_size=ramp, own=lambda size, k=k: np.arange(size)[k::4], **options)
        expected = [{name: array[k::4] for name, array in batch.items()} for batch in whole]
        assert_same(part, expected)
