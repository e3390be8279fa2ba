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
