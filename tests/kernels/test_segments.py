import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.kernels import segments


@given(st.integers(1, 128), st.data())
def test_a_block_of_queries_has_the_keys_in_its_reach(blocks, data):
    length = blocks * segments.BLOCK
    window = data.draw(st.integers(1, segments.longest_window(length) or 2 * length))
    parts = segments.divide(length, window)
    assert parts.size * parts.count == length and parts.size % segments.BLOCK == 0
    assert parts.reach >= window and parts.span <= parts.extended
    if parts.count > 1:
        assert parts.size % parts.halo == 0 and parts.reach <= parts.halo
        # Two halos do not overlap: a token is in the halo of one neighbor at most.
        assert 2 * parts.halo <= parts.size


@pytest.mark.parametrize(
    "length, window, expected",
    [
        (512, 64, (512, 1, 0, 64)),
        (8192, 64, (512, 16, 64, 64)),
        (8192, 65, (512, 16, 128, 128)),
        (1024, 64, (1024, 1, 0, 64)),
        (1408, 64, (128, 11, 64, 64)),
        (1152, 70, (384, 3, 128, 128)),
    ],
)
def test_segments(length, window, expected):
    assert segments.divide(length, window) == segments.Segments(*expected)
