"""Mistakes with `bert-jax data`: one line each, which names the flag, and nothing is left behind."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from bert_jax import cli


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
        *("--full_rows", "--full_rows --full_sentences --nsp=none", "--nsp=sop --schema=google"),
        *("--short_seq_prob=0.5 --full_rows --nsp=none", "--sampling_exponent=2", "--sentence_language=de"),
        *("--text_field=body", "--input_format=pdf", "--template=gpt", "--output=/proc/records"),
        *("--clean=smell", "--language=en", "--near_duplicate_threshold=0.1 --clean=near"),
        *("--language=xx --clean=language", "--vocab=none.txt", "--input=none/*"),
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
