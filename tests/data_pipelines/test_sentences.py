"""Sentences: nothing is lost, the cases the library alone would get wrong, and the language of the rules."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builds import contents

from data_pipelines import build, languages, sentences
from data_pipelines.sentences import split_paragraph


@pytest.mark.parametrize(
    "parts",
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
def test_sentences_of_a_paragraph(parts, blank):
    assert split_paragraph(blank.join(parts)) == parts


PIECES = st.one_of(
    st.sampled_from([*'. |.|! |?|...|(|)|"| |\n\n|\u00a0|Mr.|A.|1.|No. |a|B|。|…'.split("|")]),
    st.text(max_size=3),
)


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(pieces=st.lists(PIECES, max_size=20), language=st.sampled_from(["en", "de", "zh", "ar"]))
def test_nothing_is_lost(pieces, language):
    paragraph = "".join(pieces)
    split = split_paragraph(paragraph, language)
    assert "".join("".join(split).split()) == "".join(paragraph.split())
    assert all(sentence and sentence == sentence.strip() for sentence in split)


GERMAN = "Der Vertrag wurde am 3. Mai unterzeichnet. Er gilt."


@pytest.fixture
def german(options, tmp_path):
    """The options of a build of two documents of a paragraph each, of two sentences by German rules."""
    (tmp_path / "german.txt").write_text(f"{GERMAN}\n\n{GERMAN}\n")
    return dataclasses.replace(
        options, input=(str(tmp_path / "german.txt"),), input_format="paragraphs", eval_fraction=0.0
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_sampled_inputs_are_split_by_the_rules_of_their_names(german, tmp_path, workers):
    for name in ("de", "ur"):
        (tmp_path / "wiki" / name).mkdir(parents=True)
        (tmp_path / "wiki" / name / "a.txt").write_text(f"{GERMAN}\n\n" * 4)
    inputs = tuple(str(tmp_path / "wiki" / name / "*") for name in ("de", "ur"))
    sampled = dataclasses.replace(german, input=inputs, sampling_exponent=0.7)
    manifest = build.build(sampled, workers).manifest
    assert manifest["sentence_language"] == {"de": "de", "ur": "en"}
    assert manifest["text"]["sentences"] == 4 * 2 + 4 * 3
    before = contents(german.output)
    assert build.build(sampled).already_done and contents(german.output) == before
    one = languages.divide(inputs)
    assert dataclasses.replace(sampled, sentence_language="fi").sentence_languages([], one) == ["fi", "fi"]
    of_tfds = [languages.Language("20230601.de", ()), languages.Language("20230601.simple", ())]
    assert sampled.sentence_languages([], of_tfds) == ["de", "en"]


def test_the_rules_of_languages_are_their_own():
    texts = {"de": GERMAN, "el": "Τι είναι αυτό; Είναι το πρώτο.", "es": "La Sra. Ruiz llegó. Es así."}
    for language, text in texts.items():
        assert language in sentences.LANGUAGES
        assert len(split_paragraph(text, language)) == 2 != len(split_paragraph(text))
