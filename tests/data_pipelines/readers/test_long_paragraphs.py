"""Paragraphs of texts that are longer than a line may be."""

import collections
import tracemalloc

import pytest

from data_pipelines.readers import documents


@pytest.fixture
def parts(monkeypatch):
    """parts(text, most): the parts of a text with lines of at most that many characters."""

    def divide(text, most):
        monkeypatch.setattr(documents, "MAX_LINE_BYTES", most)
        yield from documents.plain_paragraphs(text, collections.Counter(), documents.Controls())

    return divide


def test_they_are_divided_at_spaces(parts):
    assert [*parts("one two three\nfour", 8)] == ["one two", "three", "four"]
    assert [*parts("one   two \u3000 three-and-four five", 8)] == ["one", "two", "three-an", "d-four", "five"]
    assert [*parts("abcdefgh", 8)] == ["abcdefgh"] and [*parts("abcdefghi", 8)] == ["abcdefgh", "i"]


def test_the_rest_is_not_copied_for_each_part(parts):
    text = "word " * 400_000
    tracemalloc.start()
    try:
        count = sum(1 for _ in parts(text.strip(), 50_000))
        assert tracemalloc.get_traced_memory()[1] < len(text) + 500_000  # the first is without the last space
    finally:
        tracemalloc.stop()
    assert count == 40
