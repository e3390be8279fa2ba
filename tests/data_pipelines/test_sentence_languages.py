"""The language by whose rules paragraphs are split into sentences: which it is, and that records say so."""

import dataclasses
import json
from pathlib import Path

import pytest
from support.builds import contents

from bert_jax import cli
from data_pipelines import build, languages, sentences, settings

GERMAN = "Der Vertrag wurde am 3. Mai unterzeichnet. Er gilt."


@pytest.fixture
def german(options, tmp_path):
    """The options of a build of two documents of a paragraph each, of two sentences by German rules."""
    (tmp_path / "german.txt").write_text(f"{GERMAN}\n\n{GERMAN}\n")
    return dataclasses.replace(
        options, input=(str(tmp_path / "german.txt"),), input_format="paragraphs", eval_fraction=0.0
    )


def test_the_sentences_of_the_command(german, capsys):
    flags = [f"--{name}={getattr(german, name)}" for name in ("vocab", "output", "input_format")]
    flags += [f"--input={german.input[0]}", "--workers=1", "--eval_fraction=0"]
    assert cli.main(["data", *flags, "--sentence_language=de"]) == 0
    printed = capsys.readouterr().out
    assert "text: 2 documents, 4 sentences" in printed
    assert "sentences: split by the rules of de\n" in printed
    manifest = json.loads(Path(german.output, "manifest.json").read_text())
    assert manifest["sentence_language"] == "de" and manifest["text"]["sentences"] == 4
    cli.main(["inspect", german.output])  # which finds that most tokens are [UNK]
    assert "sentence_language: de" in capsys.readouterr().out
    assert cli.main(["data", *flags]) == 2
    assert "sentence_language 'de', not 'en'" in capsys.readouterr().err


def test_by_default_nothing_of_english_records_changes(german, tmp_path):
    plain = build.build(german).manifest
    assert plain["text"]["sentences"] == 6 and "sentence_language" not in plain
    assert build.build(dataclasses.replace(german, sentence_language="en")).already_done
    # Text of languages without rules, too, and lines that are not split.
    for name, changes in {
        "zh": {"language": "zh", "clean": "language"},
        "text": {"input_format": "text", "language": "de", "clean": "language"},
    }.items():
        other = dataclasses.replace(german, output=str(tmp_path / name), **changes)
        assert "sentence_language" not in settings.resolve(
            other, other.tokenizer(), other.input, [{"bytes": 1, "sha256": ""}]
        )


def test_the_language_that_cleaning_keeps_is_the_default(german):
    kept = dataclasses.replace(german, clean="language", language="de")
    assert kept.sentence_languages(kept.input) == ["de"]
    given = dataclasses.replace(kept, sentence_language="fi")
    assert given.sentence_languages(given.input) == ["fi"]


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
    texts = {
        "de": GERMAN,
        "el": "Τι είναι αυτό; Είναι το πρώτο.",
        "es": "La Sra. Ruiz llegó. Es así.",
    }
    for language, text in texts.items():
        assert language in sentences.LANGUAGES
        assert len(sentences.split_paragraph(text, language)) == 2 != len(sentences.split_paragraph(text))
