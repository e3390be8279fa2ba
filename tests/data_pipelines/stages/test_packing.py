"""Packing loses nothing, breaks no bound, fills the rows, and looks at a bounded window."""

import collections
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.packed import PackedSequence
from data_pipelines.stages import packed_rows


def sequences_of(lengths):
    return [PackedSequence(np.full(length, i, np.uint32), 2, i % 2) for i, length in enumerate(lengths)]


@given(
    lengths=st.lists(st.integers(5, 64), max_size=200),
    most=st.integers(1, 9),
    window=st.integers(1, 80),
    seed=st.integers(0, 9),
)
@settings(deadline=None, max_examples=50)
def test_each_sequence_is_in_one_row_and_no_row_is_too_long(lengths, most, window, seed):
    sequences = sequences_of(lengths)
    rows = list(packed_rows.pack(sequences, 64, most, random.Random(seed), window))
    assert all(1 <= len(row) <= most and sum(len(s.ids) for s in row) <= 64 for row in rows)
    packed = [s for row in rows for s in row]
    assert len(packed) == len(sequences)
    assert {id(s) for s in packed} == {id(s) for s in sequences}
    again = list(packed_rows.pack(iter(sequences), 64, most, random.Random(seed), window))
    assert [[id(s) for s in row] for row in again] == [[id(s) for s in row] for row in rows]


@pytest.mark.parametrize("length, most", [(128, 8), (512, 16)])
def test_rows_of_even_lengths_are_over_98_percent_full(length, most):
    lengths = np.random.default_rng(0).integers(5, length + 1, 40_000)
    rows = list(packed_rows.pack(sequences_of(lengths), length, most, random.Random(0), window=1 << 13))
    assert sum(lengths) / (len(rows) * length) > 0.98


def counted(lengths):
    """Sequences of these lengths, and a counter of how many of them were taken."""
    taken = collections.Counter()

    def taking():
        for sequence in sequences_of(lengths):
            taken["sequences"] += 1
            yield sequence

    return taking(), taken


def test_memory_is_a_window_not_the_corpus():
    sequences, taken = counted([40] * 5000)  # none of them fills a row of 64, so all of them would wait
    for rows, _ in enumerate(packed_rows.pack(sequences, 64, 8, random.Random(0), window=100)):
        assert taken["sequences"] - rows <= 150
