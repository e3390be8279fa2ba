"""What `bert-jax inspect` says of text: each fault is planted, found and told; sound text is sound."""

import gzip
import json
import random
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


def test_unknown_words(tmp_path, vocabulary):
    documents = [[*lines, "the Übermut river Übermut quux"] for lines in sound_documents()]
    report = inspect_corpus.inspect_corpus([write(tmp_path, *documents)], vocab=vocabulary)
    assert report.facts["unknown_share"] == 180 / report.facts["tokens"]
    assert any("are [UNK]" in problem for problem in report.problems)


def test_a_large_compressed_file_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_corpus, "MOST_BYTES", 20_000)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(Path(write(tmp_path, *sound_documents(400))).read_bytes()))
    report = inspect_corpus.inspect_corpus([str(path)])
    assert 20_000 < report.facts["characters"] < 21_000 and report.problems == []
    assert report.facts["cut"] == "of a compressed file, the first 20,000 characters were read"


def test_the_command(tmp_path, vocabulary, capsys):
    path = write(tmp_path, *sound_documents())
    assert cli.main(["inspect", "--json", "--input_format=text", f"--vocab={vocabulary}", path]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["unknown_share"] == 0
    assert cli.main(["inspect", "--input_format=pdf", path]) == 2
    assert "--input_format=pdf" in capsys.readouterr().err
    (tmp_path / "words.txt").write_bytes(Path(vocabulary).read_bytes())
    assert inspect.inspect(str(tmp_path / "words.txt")).kind == "vocabulary"
    assert inspect.inspect(path).kind == "corpus"
