"""The language by whose rules paragraphs are split into sentences: which it is, and that records say so."""

import dataclasses

import pytest
from support.builds import contents

from data_pipelines import build, languages, sentences

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
        assert len(sentences.split_paragraph(text, language)) == 2 != len(sentences.split_paragraph(text))
