"""Sentences: nothing is lost, and the cases the library alone would get wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_pipelines.sentences import split_paragraph


@pytest.mark.parametrize(
    "sentences",
    [
        ["A dog barks.", "The cat sleeps!", "Why?", "Nobody knows."],
        ["Dr. Smith met J. R. R. Tolkien in Washington, D.C. on Jan. 5.", "They spoke."],
        ['"It is so.', 'I am sure."', "He left."],
        ['He said "Stop!" and left.', '"Romola", a novel, came later.'],
        ["He left (he had to.)", "(She did not.", "He knew.)", "The end."],
        ["It cost $3.5 million, i.e. much.", "[It rose since.]", "2010 was good."],
        ["Alone"],
        ["The U.S. Navy sank it.", "“No,” he said.", "“Never.”", "So be it."],
    ],
)
@pytest.mark.parametrize("blank", [" ", "\u00a0", "  ", "\u2003"])
def test_sentences_of_a_paragraph(sentences, blank):
    assert split_paragraph(blank.join(sentences)) == sentences


PIECES = st.one_of(
    st.sampled_from([*'. |.|! |?|...|(|)|"| |\n\n|\u00a0|Mr.|A.|1.|No. |a|B|。|…'.split("|")]),
    st.text(max_size=3),
)


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(PIECES, max_size=20), language=st.sampled_from(["en", "de", "zh", "ar"]))
def test_nothing_is_lost(pieces, language):
    paragraph = "".join(pieces)
    sentences = split_paragraph(paragraph, language)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)
