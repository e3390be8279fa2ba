"""Mistakes with `bert-jax data`: one line each, which names the flag, and nothing is left behind."""

import dataclasses
import gzip
import json
import os
import shutil
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.errors import UserError
from data_pipelines import build


def message_of(capsys, *arguments, command="data"):
    assert cli.main([command, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bert-jax: error: ") and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize("text", [None, "", "\n \n\t\n", "one stone.\ntwo stones.\n"])
def test_a_corpus_without_documents(options, tmp_path, capsys, text):
    if text is not None:
        (tmp_path / "a.txt").write_text(text)
    output = tmp_path / "out"
    flags = [f"--input={tmp_path}/a.txt", f"--vocab={options.vocab}", f"--output={output}"]
    message_of(capsys, *flags, "--workers=1")
    assert not output.exists()


def test_after_a_mistake_other_flags_begin_anew(options, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"content": "One stone. Two stones."}\n' * 9)
    flags = [f"--input={tmp_path}/a.jsonl", "--input_format=jsonl", f"--vocab={options.vocab}"]
    flags += [f"--output={tmp_path}/out", "--workers=1"]
    assert "--text_field=text" in message_of(capsys, *flags)
    assert not (tmp_path / "out").exists()
    assert cli.main(["data", *flags, "--text_field=content"]) == 0


@pytest.mark.parametrize("content", ["Text".encode("utf-16"), gzip.compress(b"Text"), b"%PDF-1.4"])
def test_files_that_are_not_text(options, tmp_path, capsys, content):
    (tmp_path / "a.txt").write_bytes(content)
    flags = [f"--vocab={options.vocab}", f"--output={tmp_path}/out", "--workers=1"]
    assert "expected text" in message_of(capsys, f"--input={tmp_path}/a.txt", *flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "flags",
    [
        *("--max_seq_length=4", "--max_seq_length=70000", "--short_seq_prob=1.5", "--dupe_factor=0"),
        *("--eval_fraction=0.9", "--num_shards=1000000", "--workers=-2", "--masked_lm_prob=0.2"),
        *("--full_rows", "--doc_sentences --full_sentences --nsp=none", "--nsp=sop --schema=google"),
        *("--short_seq_prob=0.5 --full_rows --nsp=none", "--sampling_exponent=2", "--sentence_language=de"),
        *("--text_field=body", "--input_format=pdf", "--template=gpt", "--output=/proc/records"),
        *("--clean=smell", "--language=en", "--near_duplicate_threshold=0.1 --clean=near"),
        *("--language=xx --clean=language", "--beam_args=x", "--vocab=none.txt", "--input=none/*"),
    ],
)
def test_wrong_flags(options, capsys, flags):
    arguments = [f"--input={options.input[0]}", f"--vocab={options.vocab}"]
    arguments += [f"--output={options.output}", "--workers=1"]
    error = message_of(capsys, *arguments, *flags.split())
    assert flags.split("=")[0].split()[0].lstrip("-") in error or flags.split("=")[1] in error


def test_files_in_the_outputectory_stay(options, capsys):
    output = Path(options.output)
    output.mkdir()
    flags = [f"--input={options.input[0]}", f"--vocab={options.vocab}", f"--output={output}"]
    for name, overwrite in (("old.tfrecord", "--overwrite"), ("vocab.txt", "--nooverwrite")):
        (output / name).write_text("mine")
        assert name in message_of(capsys, *flags, "--workers=1", overwrite)
        assert os.listdir(output) == [name] and (output / name).read_text() == "mine"
        (output / name).unlink()
    shutil.copy(options.vocab, output / "vocab.txt")  # the vocabulary of the records
    assert cli.main(["data", *flags, "--workers=1"]) == 0


def test_written_files_are_not_read_as_text(options, tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, "text")
    for output in ("text/deep/records", "text"):
        inside = dataclasses.replace(options, input=("text/**/*",), output=output, input_format="text")
        if output == "text":
            with pytest.raises(UserError, match="matches no file"):
                build.build(inside)
            continue
        first = build.build(inside).manifest
        assert build.build(inside).already_done
        assert [source["name"] for source in first["sources"]] == ["0.txt", "1.txt", "2.txt"]
    shutil.rmtree("text/deep")
    flags = ["--input=text/*", "--output=text/vocab.txt", "--size=100", "--overwrite"]
    learned = []
    for _ in range(2):
        assert cli.main(["vocab", *flags]) == 0
        learned.append(Path("text/vocab.txt").read_text())
    assert learned[0] == learned[1]


def test_the_vocabulary_is_not_text(options, capsys, tmp_path, monkeypatch, corpus):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    shutil.copy(corpus / "0.txt", "text")
    shutil.copy(options.vocab, "text/vocab.txt")
    for vocabulary in ("text/vocab.txt", "text"):
        error = message_of(capsys, "--input=text/*.txt", f"--vocab={vocabulary}", "--output=out")
        assert "text/vocab.txt is a file of --input and of --vocab" in error


def test_output(options, capsys, tmp_path):
    document = '<doc id="1" title="T">\nThe old stone walks. Over seven houses!\n</doc>\n'
    (tmp_path / "wiki.txt").write_text("\n".join([document] * 20))
    flags = [f"--input={tmp_path}/wiki.txt", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert cli.main(["data", *flags, "--workers=1"]) == 0
    printed = capsys.readouterr()
    for expected in ("train: ", " rows of 128 tokens", "% full", "text: 20 documents, 60 sentences"):
        assert expected in printed.out
    assert "--input_format=wikiextractor" in printed.err and "of the tokens are [UNK]" in printed.err
    assert cli.main(["data", *flags, "--workers=1"]) == 0
    assert "already holds these records" in capsys.readouterr().out


@pytest.mark.parametrize("name, bad", [("a.jsonl", '{"text": "One'), ("a.csv", "one,two"), ("b.jsonl", "{}")])
def test_a_warning_names_skipped_records(options, tmp_path, capsys, name, bad):
    path = tmp_path / name
    good = "A house in the sun." if name.endswith("csv") else json.dumps({"text": "A house in the sun."})
    flags = [f"--input={path}", f"--vocab={options.vocab}", "--workers=1"]
    for count in (99, 98):
        path.write_text("text\n" * name.endswith("csv") + f"{good}\n" * count + f"{bad}\n" * (100 - count))
        assert cli.main(["data", *flags, f"--output={tmp_path}/{count}"]) == 0
        assert ("2.0% of the 100 records were skipped" in capsys.readouterr().err) == (count == 98)


def test_a_full_disk_is_one_line(options, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "out/rows")

    monkeypatch.setattr(os, "replace", full)
    flags = [f"--input={options.input[0]}", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert cli.main(["data", *flags, "--workers=1"]) == 1  # not a mistake of the user
    error = capsys.readouterr().err
    assert "out/rows: No space left on device; make room" in error and error.count("\n") == 1
