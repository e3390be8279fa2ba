"""What `bert-jax inspect` says of text: each fault is planted, found and told; sound text is sound."""

import collections
import gzip
import json
import random
import re
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.commands import inspect
from data_pipelines import inspect_corpus


def write(tmp_path, *documents):
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n")
    return str(tmp_path / "a.txt")


def sound_documents(count=60):
    rng = random.Random(0)
    return [
        [f"{i} {j} " + " ".join(rng.choices(["river", "stone", "wind"], k=9)) for j in range(4)]
        for i in range(count)
    ]


def only(problems):
    assert len(problems) == 1, problems
    return problems[0]


def test_sound_text(tmp_path):
    report = inspect_corpus.inspect_corpus([write(tmp_path, *sound_documents())])
    assert report.kind == "corpus" and report.problems == []
    facts = report.facts
    assert (facts["documents"], facts["lines"], facts["duplicate_lines"], facts["files"]) == (60, 240, 0, 1)
    assert facts["frequent_lines"] == {} and "sampled" not in facts


def test_duplicate_lines_and_the_most_frequent(tmp_path):
    documents = [[*lines, "All Rights reserved."] for lines in sound_documents()]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert report.facts["duplicate_lines"] == pytest.approx(59 / 300)
    assert report.facts["frequent_lines"] == {"all rights reserved.": 60}
    size = sum(len(line) for lines in sound_documents() for line in lines)
    assert report.facts["duplicate_text"] == pytest.approx(59 * 20 / (size + 60 * 20))
    assert only(report.problems) == (
        f"{report.facts['duplicate_text']:.1%} duplicate text; lines repeat earlier ones: are there headers, "
        "footers or menus?"
    )


def test_short_lines_that_repeat_are_little_text(tmp_path):
    documents = [["History.", *lines] for lines in sound_documents()]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert report.facts["duplicate_lines"] == pytest.approx(59 / 300) and not report.problems


def test_lines_with_the_same_beginning_are_counted_apart(tmp_path):
    beginning = "this module provides access to the " + "very " * 10
    documents = [[*lines, f"{beginning} {i}"] for i, lines in enumerate(sound_documents())]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert (report.facts["frequent_lines"], report.facts["duplicate_lines"]) == ({}, 0)
    same = [[*lines, f"{beginning} of lines"] for lines in documents[:3]]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents, *same)])
    assert report.facts["frequent_lines"][f"{beginning} of lines"[:80] + "..."] == 3


def test_duplicate_documents(tmp_path):
    documents = sound_documents()
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents, *documents[:3])])
    assert report.facts["duplicate_documents"] == pytest.approx(3 / 63)
    assert "--clean=exact,near drops them" in only(report.problems)


def test_one_document(tmp_path):
    report = inspect_corpus.inspect_corpus([write(tmp_path, sum(sound_documents(), []))])
    assert "a blank line ends one), or --nsp=none" in only(report.problems)


def test_a_blank_line_after_each_line(tmp_path):
    report = inspect_corpus.inspect_corpus(
        [write(tmp_path, *([line] for line in sum(sound_documents(), [])))]
    )
    assert only(report.problems).startswith("every document is one line")


def test_long_lines(tmp_path):
    report = inspect_corpus.inspect_corpus([write(tmp_path, *sound_documents(), ["stone " * 3000])])
    assert report.facts["longest_line"] == 17_999
    assert (
        "lines of over 10,000 characters: 1, the longest of 17,999 in the document at a.txt, line 301:"
        in report.problems[-1]
    )


def test_undecodable_bytes(tmp_path):
    path = write(tmp_path, *sound_documents())
    with open(path, "ab") as file:
        file.write("\nMünchen und Köln\n".encode("latin-1"))
    report = inspect_corpus.inspect_corpus([path])
    assert report.facts["undecodable"] == 2 and "2 places of the text cannot be decoded" in only(
        report.problems
    )


@pytest.mark.parametrize(
    "line, residue",
    [
        ("<p>text</p>", True),
        ("Tom &amp; Jerry", True),
        ("see [[Link|it]]", True),
        ("a < b and c > d", False),
        ("AT&T; x[0]", False),
    ],
)
def test_markup(tmp_path, line, residue):
    documents = [[*lines, f"{number} {line}"] for number, lines in enumerate(sound_documents())]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert report.facts["markup_lines"] == pytest.approx(0.2 * residue)
    expected = f"20.0% markup lines; such as '0 {line}' in the document at a.txt, line 1: --input_format="
    assert [problem.startswith(expected) for problem in report.problems] == [True] * residue


@pytest.mark.parametrize("before, after", [(0, 500), (200, 0), (200, 500), (30, 30)])
def test_the_example_of_markup_shows_the_markup(tmp_path, before, after):
    line = "a" * before + "<b>bold</b>" + "z" * after
    report = inspect_corpus.inspect_corpus(
        [write(tmp_path, *([*lines, line] for lines in sound_documents()))]
    )
    shown = re.search("such as '(.*?)' in the document", "".join(report.problems))[1]
    assert "<b>" in shown and len(shown) <= 80 + 2 * len("...")
    assert shown.startswith("...") == (before > 80) and shown.endswith("...") == (after > 80)


def test_text_of_another_format(tmp_path):
    documents = [[f"{number} river. The stone {number}! The wind?"] * 2 for number in range(60)]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert any("give --input_format=paragraphs" in problem for problem in report.problems)
    documents = [[f'<doc id="{number}">', f"River {number}", "</doc>"] for number in range(60)]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)])
    assert any("give --input_format=wikiextractor" in problem for problem in report.problems)


def test_unknown_words(tmp_path, vocabulary):
    documents = [[*lines, "the Übermut river Übermut quux"] for lines in sound_documents()]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)], vocab=vocabulary)
    assert report.facts["unknown_words"] == {"Übermut": 120, "quux": 60}
    assert report.facts["unknown_share"] == 180 / report.facts["tokens"]
    assert any("are [UNK] (Übermut, quux)" in problem for problem in report.problems)


def test_pieces_of_a_large_corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_corpus, "MOST_BYTES", 20_000)
    monkeypatch.setattr(inspect_corpus, "_PIECE_BYTES", 2000)
    report = inspect_corpus.inspect_corpus([write(tmp_path, *sound_documents(200))])
    assert 20 < report.facts["documents"] < 120
    assert "evenly spaced pieces were read" in report.facts["sampled"]


def test_a_long_book_is_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_corpus, "_PIECE_BYTES", 1000)
    paragraphs = [f"The {n} rivers of the valley run {n} miles to the sea." for n in range(200)]
    (tmp_path / "book.txt").write_text("\n\n".join(paragraphs))
    facts = inspect_corpus.inspect_corpus([str(tmp_path)], "books").facts
    assert (facts["lines"], facts["duplicate_lines"]) == (200, 0)


def test_another_text_field(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"body": "One river."}\n{"body": "Two stones."}\n')
    argv = ["inspect", "--input_format=jsonl", str(tmp_path / "a.jsonl")]
    assert cli.main(argv) == 2
    assert "--text_field=text: none of the first 2 lines" in capsys.readouterr().err
    assert cli.main([*argv, "--text_field=body"]) == 0


@pytest.mark.parametrize("flag", ["text_field", "id_field", "tfds_data_dir"])
def test_flags_of_other_text_are_refused(tmp_path, capsys, flag):
    path = write(tmp_path, "One river.\n")
    for given, message in (("--input_format=text", ""), ("--examples=1", "is for text with --input_format;")):
        assert cli.main(["inspect", given, f"--{flag}=body", path]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"bert-jax: error: --{flag}=body") and error.count("\n") == 1
        assert message in error


def test_a_large_compressed_file_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_corpus, "MOST_BYTES", 20_000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(Path(write(tmp_path, *sound_documents(400))).read_bytes()))
    report = inspect_corpus.inspect_corpus([str(path)])
    assert 20_000 < report.facts["characters"] < 21_000 and report.problems == []
    assert report.facts["cut"] == "of a compressed file, the first 20,000 characters were read"


def test_frequent_lines_are_found_in_little_memory():
    rng = random.Random(1)
    frequent, true = inspect_corpus.Frequent(500), collections.Counter()
    for number in range(20_000):
        text = "common" if rng.random() < 0.02 else "rarer" if rng.random() < 0.01 else str(number)
        true[text] += 1
        frequent.add(text)
        assert len(frequent._counts) < 4000
    found = frequent.most(2)
    assert list(found) == ["common", "rarer"]
    assert all(true[text] - 40 <= count <= true[text] for text, count in found.items())


def test_the_command(tmp_path, vocabulary, capsys):
    path = write(tmp_path, *sound_documents())
    assert cli.main(["inspect", path]) == 0
    assert f"{path}: corpus" in capsys.readouterr().out
    assert cli.main(["inspect", "--json", "--input_format=text", f"--vocab={vocabulary}", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["unknown_share"] == 0
    assert cli.main(["inspect", "--input_format=pdf", path]) == 2
    assert "--input_format=pdf: expected auto or one of text" in capsys.readouterr().err
    assert cli.main(["inspect", str(tmp_path)]) == 2
    assert "--input_format=text" in capsys.readouterr().err
    (tmp_path / "words.txt").write_bytes(Path(vocabulary).read_bytes())
    assert inspect.inspect(str(tmp_path / "words.txt")).kind == "vocabulary"
