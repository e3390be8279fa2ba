"""Repeats are counted, or estimated from a sample where there are too many things to remember."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.inspection import DistinctSample


@settings(deadline=None)
@given(st.lists(st.integers(0, 400), max_size=600), st.integers(20, 500))
def test_repeats_are_exact_until_there_are_too_many(numbers, most):
    sample = DistinctSample(most)
    for number in numbers:
        sample.add(b"%d" % number)
    if len(set(numbers)) <= most:
        expected = 1 - len(set(numbers)) / len(numbers) if numbers else 0
        assert sample.how_estimated() == "" and sample.repeats() == len(numbers) - len(set(numbers))
        assert sample.repeated_share() == pytest.approx(expected)
        sizes = [sum(len(b"%d" % number) for number in found) for found in (set(numbers), numbers)]
        in_repeats = 1 - sizes[0] / sizes[1] if numbers else 0
        assert sample.repeated_share_of_bytes() == pytest.approx(in_repeats)
    else:
        assert sample.halvings > 0
