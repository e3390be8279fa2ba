"""Texts longer than a row: their windows, the windows' weights, and one output per text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.word_examples import WordTokenizer, examples

from bert_jax.tasks.rows import assembly


def covered(parts, text, stride):
    """Returns whether the windows cover the text; asserts that they are slices every `stride` tokens."""
    room = len(parts[0])
    starts = [*range(0, len(text) - room, stride), len(text) - room]
    assert parts == [text[start : start + room] for start in starts]
    return {token for window in parts for token in window} == set(text)


@settings(max_examples=300, deadline=None)
@given(st.integers(4, 20), st.integers(0, 60), st.none() | st.integers(0, 60), st.data())
def test_windows_cover_every_token(max_seq_length, length_a, length_b, data):
    a = list(range(length_a))
    b = None if length_b is None else list(range(100, 100 + length_b))
    budget = max_seq_length - (2 if b is None else 3)
    least = budget if b is None else budget - budget // 2
    stride = data.draw(st.integers(1, least))
    room = max_seq_length - (2 if b is None else 3)
    rows, cut = assembly.split_pair(a, b, room, stride)
    if length_a + (length_b or 0) <= budget:
        assert (rows, cut) == ([(a, b)], False)
        return
    if b is None:
        assert {second for _, second in rows} == {None} and not cut
        assert {len(first) for first, _ in rows} == {budget} and covered([row[0] for row in rows], a, stride)
        return
    long, short = (0, 1) if length_a > length_b else (1, 0)
    texts = (a, b)
    kept = texts[short][: budget // 2]
    assert all(row[short] == kept for row in rows) and cut == (kept != texts[short])
    assert all(len(first) + len(second) <= budget for first, second in rows)
    assert covered([row[long] for row in rows], texts[long], stride)


def rows_of(data):
    return [row.tolist()[1:-1] for row in np.split(data.tokens, data.offsets[1:-1])]


def test_rows_of_a_file():
    texts = ["a bb ccc", "a bb ccc dddd eeeee ffffff", "a"]
    data = assembly.encode(examples(texts, labels=[1, 0, 1]), WordTokenizer(), 5, doc_stride=2)
    assert rows_of(data) == [[11, 12, 13], [11, 12, 13], [13, 14, 15], [14, 15, 16], [11]]
    assert data.examples.tolist() == [0, 1, 1, 1, 2] and data.first_lengths.tolist() == [5, 5, 5, 5, 3]
    assert data.targets["targets"].tolist() == [1, 0, 0, 0, 1]
    np.testing.assert_allclose(data.row_weights, np.array([1, 1 / 3, 1 / 3, 1 / 3, 1]) * 5 / 3, rtol=1e-6)
    pairs = examples(["a bb", "a"], ["ccc", "bb ccc dddd eeeee"], [1, 0])
    data = assembly.encode(pairs, WordTokenizer(), 7, doc_stride=2)
    assert rows_of(data) == [[11, 12, 2, 13], [11, 2, 12, 13, 14], [11, 2, 13, 14, 15]]
    assert data.first_lengths.tolist() == [4, 3, 3] and data.truncated == 0
