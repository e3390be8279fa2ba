"""The language by whose rules paragraphs are split into sentences: which it is, and that records say so."""

import dataclasses
import json
from pathlib import Path

import pytest
from support.builds import contents, interrupted

from bert_jax import cli
from bert_jax.commands import data
from bert_jax.errors import UserError
from data_pipelines import build, languages, output_lock, recorded_settings, sentences

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
    cli.main(["inspect", german.output, "--examples=0"])  # which finds that most tokens are [UNK]
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
        assert "sentence_language" not in recorded_settings.resolve(
            other, other.tokenizer(), other.input, [{"bytes": 1, "sha256": ""}]
        )


def test_unfinished_work_of_an_earlier_version_goes_on(german):
    with interrupted(1):
        build.build(german)
    path = Path(german.output) / output_lock.UNFINISHED / output_lock.SETTINGS
    assert "sentence_language" not in json.loads(path.read_text())
    with pytest.raises(UserError, match="sentence_language 'en', not 'de'"):
        build.build(dataclasses.replace(german, sentence_language="de"))
    assert build.build(german).manifest["text"]["sentences"] == 6


def test_the_language_that_cleaning_keeps_is_the_default(german):
    kept = dataclasses.replace(german, clean="language", language="de")
    assert kept.sentence_languages(kept.input) == ["de"]
    given = dataclasses.replace(kept, sentence_language="fi")
    assert given.sentence_languages(given.input) == ["fi"]


@pytest.mark.parametrize("workers", [1, 2])
def test_sampled_inputs_are_split_by_the_rules_of_their_names(german, tmp_path, capsys, workers):
    for name in ("de", "ur"):
        (tmp_path / "wiki" / name).mkdir(parents=True)
        (tmp_path / "wiki" / name / "a.txt").write_text(f"{GERMAN}\n\n" * 4)
    inputs = tuple(str(tmp_path / "wiki" / name / "*") for name in ("de", "ur"))
    sampled = dataclasses.replace(german, input=inputs, sampling_exponent=0.7)
    manifest = build.build(sampled, workers).manifest
    assert manifest["sentence_language"] == {"de": "de", "ur": "en"}
    assert manifest["text"]["sentences"] == 4 * 2 + 4 * 3
    warning = "warning: English rules split the text of ur into sentences"
    assert warning in capsys.readouterr().err
    before = contents(german.output)
    assert build.build(sampled).already_done and contents(german.output) == before
    one = languages.divide(inputs)
    assert dataclasses.replace(sampled, sentence_language="fi").sentence_languages([], one) == ["fi", "fi"]
    of_tfds = [languages.Language("20230601.de", ()), languages.Language("20230601.simple", ())]
    assert sampled.sentence_languages([], of_tfds) == ["de", "en"]


def test_the_rules_of_sampled_inputs_are_named_if_they_are_english(german, tmp_path, capsys):
    for name in ("german", "other"):
        (tmp_path / f"{name}.txt").write_text(f"{GERMAN}\n\n" * 4)
    inputs = tuple(str(tmp_path / f"{name}.txt") for name in ("german", "other"))
    sampled = dataclasses.replace(german, input=inputs, sampling_exponent=0.7)
    printed = data.summary(build.build(sampled).manifest)
    assert "sentences: split by the rules of en" in printed
    assert "the text of german, other into sentences" in capsys.readouterr().err
    for name, changes in {
        "named": {"sentence_language": "en"},
        "lines": {"input_format": "text"},
    }.items():
        other = dataclasses.replace(sampled, output=str(tmp_path / name), **changes)
        split = any("the rules of en" in line for line in data.summary(build.build(other).manifest))
        assert split == (name == "named") and "warning" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentence_language": "xx"}, "--sentence_language=xx: expected one of am, ar, "),
        (
            {"sentence_language": "de", "input_format": "text"},
            "--sentence_language=de: the lines of --input_format=text are sentences, and none is split",
        ),
    ],
)
def test_mistakes(german, changes, message):
    with pytest.raises(UserError) as error:
        build.build(dataclasses.replace(german, **changes))
    assert message in str(error.value) and not Path(german.output).exists()


def test_the_rules_of_languages_are_their_own():
    texts = {
        "de": GERMAN,
        "el": "Τι είναι αυτό; Είναι το πρώτο.",
        "es": "La Sra. Ruiz llegó. Es así.",
    }
    for language, text in texts.items():
        assert language in sentences.LANGUAGES
        assert len(sentences.split_paragraph(text, language)) == 2 != len(sentences.split_paragraph(text))
