"""The division of rows among the record files: every row once, in files of one size."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.stages import shards


def rows_of(share):
    return [(path, row) for path, *numbers in share for row in range(*numbers)]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 200), max_size=5), st.integers(1, 9), st.booleans())
def test_every_row_is_in_one_shard(sizes, count, round_robin):
    parts = [(f"part{number}", size) for number, size in enumerate(sizes)]
    every = [(path, row) for path, size in parts for row in range(size)]
    shares = shards.share_rows(parts, count, round_robin)
    found = [rows_of(share) for share in shares]
    if round_robin:
        assert found == [every[number::count] for number in range(count)]
    else:
        assert list(itertools.chain(*found)) == every
    numbers = [len(rows) for rows in found]
    assert max(numbers) - min(numbers) <= 1
    for share in shares:
        assert all(first < end for _, first, end, _ in share)
        assert sorted(rows_of(shards.spread(share))) == sorted(rows_of(share))


def test_parts_of_a_file_are_spread():
    parts = [("a", 0, 1000, 1), ("b", 3, 23, 2), ("c", 5, 6, 1)]
    pieces = shards.spread(parts)
    for path, first, end, step in parts:
        rows = [i for piece in pieces if piece[0] == path for i in range(*piece[1:])]
        assert rows == list(range(first, end, step))
    order = [piece[0] for piece in pieces]
    assert order.index("c") == pytest.approx(len(order) / 2, abs=2)
    assert {*order[:8]} == {"a", "b"} == {*order[-8:]}


@pytest.mark.parametrize("step", [1, 3])
def test_each_part_is_spread_over_the_file(step):
    share = [("a", 5, 705, step), ("b", 0, 6400, step), ("c", 2, 202, step)]
    sizes = {path: len(range(first, end, step)) for path, first, end, _ in share}
    seen = dict.fromkeys(sizes, 0)
    for path, *numbers in shards.spread(share):
        assert len(range(*numbers)) <= -(-sizes[path] // 64)
        seen[path] += len(range(*numbers))
        done = [seen[path] / size for path, size in sizes.items()]
        assert max(done) - min(done) < 2 / 64
    assert seen == sizes


def test_the_names_of_files_are_in_the_order_of_their_places():
    assert shards.file_name("train", 3, 128) == "train-00003-of-00128.tfrecord"
