"""What the WordPiece vocabulary of a text is made from."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.vocabulary import wordpiece


@settings(max_examples=25)
@given(st.lists(st.text(st.characters(), max_size=20), max_size=20), st.integers(1, 8))
def test_characters_are_counted_as_one_by_one(texts, together):
    expected = collections.Counter(character for text in texts for character in text)
    before, wordpiece._TOGETHER = wordpiece._TOGETHER, together
    try:
        assert wordpiece.character_counts(texts) == expected
    finally:
        wordpiece._TOGETHER = before
