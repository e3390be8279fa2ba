"""The division of rows among the record files: every row once, in files of one size."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines import build


def rows_of(share):
    return [(path, row) for path, *numbers in share for row in range(*numbers)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 200), max_size=5), st.integers(1, 9), st.booleans())
def test_every_row_is_in_one_shard(sizes, count, round_robin):
    parts = [(f"part{number}", size) for number, size in enumerate(sizes)]
    every = [(path, row) for path, size in parts for row in range(size)]
    shares = build.share_rows(parts, count, round_robin)
    found = [rows_of(share) for share in shares]
    if round_robin:
        assert found == [every[number::count] for number in range(count)]
    else:
        assert list(itertools.chain(*found)) == every
    numbers = [len(rows) for rows in found]
    assert max(numbers) - min(numbers) <= 1
    for share in shares:
        assert all(first < end for _, first, end, _ in share)
        assert sorted(rows_of(build.spread(share))) == sorted(rows_of(share))


def test_parts_of_a_file_are_spread():
    parts = [("a", 0, 1000, 1), ("b", 3, 23, 2), ("c", 5, 6, 1)]
    pieces = build.spread(parts)
    for path, first, end, step in parts:
        rows = [i for piece in pieces if piece[0] == path for i in range(*piece[1:])]
        assert rows == list(range(first, end, step))
    order = [piece[0] for piece in pieces]
    assert order.index("c") == pytest.approx(len(order) / 2, abs=2)
    assert {*order[:8]} == {"a", "b"} == {*order[-8:]}
