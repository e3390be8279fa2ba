"""The largest batch that fits, whatever the capacity, in few questions."""

from hypothesis import given
from hypothesis import strategies as st

from bert_jax.estimate import search


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_within_an_eighth_and_few_questions(capacity, start):
    asked = []

    def fits(n):
        asked.append(n)
        return n <= capacity

    found = search.largest_fitting(fits, start)
    assert found <= capacity < found + 2 + found / 8
    assert len(asked) == len(set(asked)) <= 18


def test_the_usual_search_is_short():
    asked = []
    assert search.largest_fitting(lambda n: asked.append(n) or n <= 50, 16) == 48
    assert asked == [16, 32, 64, 48, 56, 52]


def test_everything_fits():
    assert search.largest_fitting(lambda n: True, 1) == 2**16
