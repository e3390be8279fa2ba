"""Users' mistakes with `bert-jax data`: one line each, and nothing left behind."""

import contextlib
import dataclasses
import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from bert_jax import cli
from bert_jax.commands import data
from bert_jax.errors import UserError
from data_pipelines import build, outputs_apart
from data_pipelines.readers import inputs


def message_of(capsys, *arguments):
    assert cli.main(["data", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bert-jax: error: ") and error.count("\n") == 1, error
    return error


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no input file matches"),
        ("", "a.txt is empty; expected text"),
        ("\n \n\t\n", "no text in .*a.txt: is --input_format=text right"),
        ("one stone.\ntwo stones.\n", "the corpus is one document.*a blank line ends one"),
    ],
)
def test_a_corpus_that_is_none(options, tmp_path, capsys, text, message):
    if text is not None:
        (tmp_path / "a.txt").write_text(text)
    output = tmp_path / "out"
    error = message_of(
        capsys,
        f"--input={tmp_path}/a.txt",
        f"--vocab={options.vocab}",
        f"--output={output}",
        "--workers=1",
    )
    assert re.search(message, error), error
    assert not output.exists()  # nothing is left that a second try would stumble over


def test_after_a_mistake_other_flags_begin_anew(options, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text('{"content": "One stone. Two stones."}\n' * 9)
    flags = [f"--input={tmp_path}/a.jsonl", "--input_format=jsonl", f"--vocab={options.vocab}"]
    flags += [f"--output={tmp_path}/out", "--workers=1"]
    assert "their fields are content" in message_of(capsys, *flags)
    assert not (tmp_path / "out").exists()
    assert cli.main(["data", *flags, "--text_field=content"]) == 0


@pytest.mark.parametrize("content", ["Text".encode("utf-16"), gzip.compress(b"Text"), b"%PDF-1.4"])
def test_after_a_file_that_is_no_text_another_input_begins_anew(options, tmp_path, capsys, content):
    (tmp_path / "a.txt").write_bytes(content)
    flags = [f"--vocab={options.vocab}", f"--output={tmp_path}/out", "--workers=1"]
    assert "expected " in message_of(capsys, f"--input={tmp_path}/a.txt", *flags)
    assert not (tmp_path / "out").exists()
    assert cli.main(["data", *(f"--input={path}" for path in options.input), *flags]) == 0


@pytest.mark.parametrize("ids", [1, 2, 100])
def test_ids_that_documents_share(options, tmp_path, ids):
    rows = [{"text": "One stone. Two stones.", "id": number % ids} for number in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    options = dataclasses.replace(
        options, input=(f"{tmp_path}/a.jsonl",), input_format="jsonl", id_field="id", eval_fraction=0.01
    )
    if ids == 1:
        with pytest.raises(UserError, match=r"train on, since those of one --id_field=id are held out toge"):
            build.build(options)
        return
    warnings = data.warnings(build.build(options).manifest)
    message = "50.0% of the documents are held out, with --eval_fraction=0.01: those of one --id_field=id are"
    assert any(message in line for line in warnings) == (ids == 2)


def test_a_vocabulary_without_mask(options, tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n")
    error = message_of(capsys, f"--input={options.input[0]}", f"--vocab={tmp_path}/vocab.txt", "--output=x")
    assert "[MASK]" in error


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--max_seq_length=4", "--max_seq_length=4: expected at least 5"),
        ("--max_seq_length=70000", "under 65,536"),
        ("--short_seq_prob=1.5", "expected a probability"),
        ("--dupe_factor=0", "--dupe_factor=0: expected at least 1"),
        ("--max_sequences_per_row=70000", "expected 1 to 65,536, or 0"),
        ("--seed=99999999999999999999", "expected a number of 64 bits"),
        ("--eval_fraction=0.9", "--eval_fraction=0.9"),
        ("--num_shards=1000000", "the text gives only"),
        ("--num_shards=-1", "--num_shards=-1"),
        ("--workers=-2", "--workers=-2"),
        ("--masked_lm_prob=0.2", "--masked_lm_prob=0.2 is not for --schema=packed"),
        ("--whole_word_mask", "--whole_word_mask=true is not for --schema=packed, whose masks are drawn in"),
        ("--schema=google --nsp=sop", "--nsp=sop is not for --schema=google"),
        ("--schema=google --max_predictions_per_seq=0", "--max_predictions_per_seq=0: expected 1 to 65,536"),
        ("--schema=google --masked_lm_prob=1", "--masked_lm_prob=1.0: expected over 0 and under 1"),
        ("--schema=google --max_ngram=-1", "--max_ngram=-1: expected"),
        ("--full_sentences", "--full_sentences with --nsp=next"),
        ("--doc_sentences --nsp=sop", "--doc_sentences with --nsp=sop"),
        ("--doc_sentences --full_sentences --nsp=none", "expected at most one of the two"),
        ("--doc_sentences --nsp=none --short_seq_prob=0.5", "--doc_sentences with --short_seq_prob=0.5"),
        ("--schema=google --doc_sentences", "--doc_sentences"),
        ("--full_rows", "--full_rows with --nsp=next: such rows have no second segment"),
        ("--full_rows --full_sentences --nsp=none", "--full_sentences --full_rows: expected at most one"),
        ("--full_rows --doc_sentences --nsp=none", "--doc_sentences --full_rows: expected at most one"),
        ("--full_rows --nsp=none --short_seq_prob=0.5", "--full_rows with --short_seq_prob=0.5"),
        ("--full_rows --nsp=none --max_sequences_per_row=2", "such a row is one sequence"),
        ("--full_sentences --nsp=none --max_sequences_per_row=2", "such a row is one sequence"),
        ("--schema=google --full_rows", "--full_rows=true is not for --schema=google"),
        ("--text_field=body", "--text_field=body: the text has no fields with --input_format=text; leave"),
        ("--id_field=key", "--id_field=key: the text has no fields with --input_format=text; leave"),
        ("--tfds_data_dir=/sets", "--tfds_data_dir=/sets: no input is tfds:NAME; leave the flag out"),
        ("--input_format=pdf", "--input_format=pdf: expected auto or one of text"),
        ("--template=gpt", "--template=gpt: expected one of bert, roberta, modernbert"),
        ("--output=/proc/records", "/proc/records"),
        ("--output=", "--output"),
        ("stray.txt", "stray.txt"),
    ],
)
def test_flags_that_cannot_be(options, capsys, flag, message):
    arguments = [
        f"--input={options.input[0]}",
        f"--vocab={options.vocab}",
        f"--output={options.output}",
    ]
    assert message in message_of(capsys, *arguments, "--workers=1", *flag.split())


def test_a_directory_of_other_things(options, capsys):
    os.makedirs(options.output)
    Path(options.output, "old.tfrecord").touch()
    arguments = [
        f"--input={options.input[0]}",
        f"--vocab={options.vocab}",
        f"--output={options.output}",
    ]
    assert "holds old.tfrecord and no manifest.json" in message_of(capsys, *arguments, "--workers=1")


@pytest.mark.parametrize("name", ["vocab.txt", "cleaning.json"])
def test_files_of_others_in_the_directory_stay(options, capsys, name):
    output = Path(options.output)
    output.mkdir()
    (output / name).write_text("mine")
    flags = [f"--input={options.input[0]}", f"--vocab={options.vocab}", "--clean=exact", "--workers=1"]
    error = message_of(capsys, *flags, f"--output={output}")
    assert f"{output} holds another {name} and no manifest.json: --overwrite replaces it, or" in error
    assert os.listdir(output) == [name] and (output / name).read_text() == "mine"
    assert cli.main(["data", *flags, f"--output={output}", "--overwrite"]) == 0
    assert (output / name).read_text() != "mine"


def test_the_vocabulary_may_lie_where_the_records_will(options):
    output = Path(options.output)
    output.mkdir()
    shutil.copy(options.vocab, output / "vocab.txt")
    flags = [f"--input={options.input[0]}", f"--vocab={output}/vocab.txt", "--workers=1"]
    assert cli.main(["data", *flags, f"--output={output}"]) == 0


def test_what_is_printed(options, capsys, corpus, tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n.\n")
    arguments = [
        f"--input={options.input[0]}",
        f"--vocab={tmp_path}/vocab.txt",
        f"--output={options.output}",
    ]
    assert cli.main(["data", *arguments, "--workers=1"]) == 0
    printed = capsys.readouterr()
    for part in (
        "train: ",
        " rows of 128 tokens",
        "% full",
        "random next",
        "eval: ",
        "text: 60 documents",
        "[UNK]",
    ):
        assert part in printed.out
    assert "of the tokens are [UNK]" in printed.err
    assert cli.main(["data", *arguments, "--workers=1"]) == 0
    assert "already holds these records" in capsys.readouterr().out


def test_markup_in_plain_text_is_told(options, tmp_path, capsys):
    document = '<doc id="1" title="T">\nThe old stone walks over seven houses.\nA hill.\n</doc>\n'
    (tmp_path / "wiki.txt").write_text("\n".join([document] * 20))
    flags = [f"--input={tmp_path}/wiki.txt", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert cli.main(["data", *flags]) == 0
    assert capsys.readouterr().err.count("20 lines of the text begin with <doc") == 1


@pytest.mark.long
def test_paragraphs_in_plain_text_are_told(options, tmp_path, capsys):
    document = "The old stone walks. Over seven houses! A hill.\n" * 2
    (tmp_path / "text.txt").write_text("\n".join([document] * 20))
    flags = [f"--input={tmp_path}/text.txt", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert cli.main(["data", *flags]) == 0
    captured = capsys.readouterr()
    assert "3.0 sentences on average" in captured.err and captured.err.count("--input_format=paragraphs") == 1
    assert "20 documents, 40 sentences" in captured.out
    assert cli.main(["data", *flags, "--input_format=paragraphs", f"--output={tmp_path}/split"]) == 0
    captured = capsys.readouterr()
    assert "--input_format" not in captured.err and "20 documents, 120 sentences" in captured.out


def test_another_format_is_reported_before_the_build(options, tmp_path, capsys, monkeypatch):
    document = "The old stone walks. Over seven houses! A hill.\n" * 2
    with gzip.open(tmp_path / "text.txt.gz", "wt") as file:
        file.write("\n".join([document] * 20))
    before = []
    monkeypatch.setattr(build._Build, "_make", lambda *_: before.append(capsys.readouterr().err) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        flags = [f"--vocab={options.vocab}", f"--output={options.output}", "--workers=1"]
        cli.main(["data", f"--input={tmp_path}/text.txt.gz", *flags])
    assert before[0].count("warning: a line of the text has ") == 1


def test_a_corpus_of_one_row_is_singular(options, tmp_path, capsys):
    (tmp_path / "one.txt").write_text("A house in the sun.\n\n")
    flags = [f"--input={tmp_path}/one.txt", f"--vocab={options.vocab}", "--nsp=none", "--eval_fraction=0"]
    assert cli.main(["data", *flags, f"--output={options.output}", "--workers=1"]) == 0
    train, text, _ = capsys.readouterr().out.splitlines()
    assert train.startswith("train: 1 row of ") and "; 1 sequence of 1 document, " in train
    assert text.startswith("text: 1 document, 1 sentence, ")


@pytest.mark.parametrize(
    "name, content, expected, other",
    [
        ("a.txt", "Alte Städte übertönen.\nEin Tal.\n\n".encode("latin-1"), "LATIN1", "surrogate"),
        ("a.jsonl", b'{"text": "The old \\ud83d stone. A \\ud83d hill."}\n', "surrogate", "LATIN1"),
    ],
)
def test_text_that_cannot_be_decoded_is_told(options, tmp_path, capsys, name, content, expected, other):
    (tmp_path / name).write_bytes(content * 20)
    flags = [f"--input={tmp_path}/{name}", f"--vocab={options.vocab}", f"--output={options.output}"]
    assert cli.main(["data", *flags, "--workers=1"]) == 0
    told = capsys.readouterr().err
    assert "cannot be decoded" in told and expected in told and other not in told
    assert cli.main(["inspect", "--input_format=auto", f"{tmp_path}/{name}"]) == 1
    assert "cannot be decoded" in capsys.readouterr().out


@pytest.mark.parametrize("name, bad", [("a.jsonl", '{"text": "One'), ("a.csv", "one,two"), ("b.jsonl", "{}")])
def test_records_that_are_left_out_are_told(options, tmp_path, capsys, name, bad):
    path = tmp_path / name
    good = "A house in the sun." if name.endswith("csv") else '{"text": "A house in the sun."}'
    format = path.suffix[1:]
    head = "text\n" * (format == "csv")
    flags = [f"--input={path}", f"--input_format={format}", f"--vocab={options.vocab}", "--workers=1"]
    for count in (99, 98):
        path.write_text(head + f"{good}\n" * count + f"{bad}\n" * (100 - count))
        assert cli.main(["data", *flags, f"--output={tmp_path}/{count}"]) == 0
        told = "warning: 2.0% of the 100 records were left out: 2 " in capsys.readouterr().err
        assert told == (count == 98)
        cli.main(["inspect", f"--input_format={format}", str(path)])
        printed = capsys.readouterr().out
        assert ("WRONG: 2.0% of the 100 records were left out: 2 " in printed) == (count == 98)
        assert re.search(rf"^  (bad_lines|without_text): {100 - count}$", printed, re.MULTILINE)


def test_a_full_disk_is_one_line(options, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "out/rows")

    monkeypatch.setattr(os, "replace", full)
    arguments = [
        f"--input={options.input[0]}",
        f"--vocab={options.vocab}",
        f"--output={options.output}",
    ]
    told = "out/rows: No space left on device; make room, and the same command goes on"
    assert cli.main(["data", *arguments, "--workers=1"]) == 1  # storage that fails is no mistake of the user
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1


@pytest.mark.parametrize("inside", ["", "records/deep"])
@pytest.mark.parametrize("pattern", ["", "*", "r*", "**"])
def test_records_do_not_lie_among_the_text(options, capsys, pattern, inside):
    """Else the next build would read them."""
    folder = Path(options.input[0]).parent
    output = folder / (inside or "records")
    if not pattern:
        output = folder / inside
    given = folder / pattern
    arguments = f"--input={given}", f"--vocab={options.vocab}", f"--output={output}"
    message = f"--output={output} lies in --input={given}, whose files are all read as text"
    assert message in message_of(capsys, *arguments)
    assert not (folder / "records").exists()


@pytest.mark.parametrize(
    "pattern, output, name",
    [
        ("C/**/*.txt", "C/records", "vocab.txt"),
        ("C/*", "C", "vocab.txt"),
        ("C/**/*.model", "C/records", "vocab.model"),
        ("C/**/*.json", "C/records", "tokenizer.json"),
        ("C/**/clean*", "C/deep/records", "cleaning.json"),
        ("C/**/train*", "C/records", "train-00000-of-00001.tfrecord"),
        ("C/*/*/*", "C/records", "unfinished/settings.json"),
    ],
)
@pytest.mark.parametrize("root", ["local", "memory://bucket"])
def test_what_a_build_writes_is_not_text_of_the_next_one(
    options, capsys, tmp_path, pattern, output, name, root
):
    root = str(tmp_path) if root == "local" else root
    arguments = f"--input={root}/{pattern}", f"--vocab={options.vocab}", f"--output={root}/{output}"
    assert f"--input={root}/{pattern} also finds {name} in --output={root}/{output}" in message_of(
        capsys, *arguments
    )
    assert not (tmp_path / "C").exists()


@pytest.mark.parametrize(
    "pattern, output, message",
    [
        ("corpus", "data/out", "--output=data/out lies in --input=corpus, whose"),
        ("cor*", "data/out", "--output=data/out lies in --input=cor*, whose"),
        ("corpus/deep", "data", "--output=data lies in --input=corpus/deep, whose"),
        ("corpus/deep/link", "data/out", "--output=data/out lies in --input=corpus/deep/link, whose"),
        ("data", "corpus/deep/link/out", "--output=corpus/deep/link/out lies in --input=data, whose"),
        ("corpus/**/*.txt", "data/out", "--input=corpus/**/*.txt also finds vocab.txt in --output=data"),
        ("corpus/*/*/*/*.txt", "data/out", "--input=corpus/*/*/*/*.txt also finds vocab.txt in --output"),
        ("corpus/deep/*.txt", "data/out", ""),
        ("data/text", "corpus/out", ""),
    ],
)
def test_links_do_not_hide_what_a_build_writes(tmp_path, monkeypatch, pattern, output, message):
    (tmp_path / "corpus/deep").mkdir(parents=True)
    (tmp_path / "data/text").mkdir(parents=True)
    (tmp_path / "corpus/deep/link").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    options = build.Options(input=(pattern,), vocab="vocab.txt", output=output)
    with pytest.raises(UserError, match=re.escape(message)) if message else contextlib.nullcontext():
        outputs_apart.check(options)


def test_inputs_with_commas_are_searched_once_for_the_whole_pattern(tmp_path, monkeypatch):
    searched = []
    monkeypatch.setattr(inputs, "finds", lambda pattern: searched.append(pattern) or False)
    pattern = f"{tmp_path}/a/**/*.txt,{tmp_path}/b/**/*.txt"
    outputs_apart.check(build.Options(input=(pattern,), vocab="vocab.txt", output=str(tmp_path / "out")))
    assert searched.count(pattern) == 1


def test_the_vocabulary_is_not_text(options, capsys, tmp_path, monkeypatch, corpus):
    """Neither as a file, under whatever name, nor as that of a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    shutil.copy(corpus / "0.txt", "text")
    shutil.copy(options.vocab, "text/vocab.txt")
    (tmp_path / "link").symlink_to("text")
    for vocabulary in ("text/vocab.txt", f"{tmp_path}/link/vocab.txt", "text", "link"):
        error = message_of(capsys, "--input=text/*.txt", f"--vocab={vocabulary}", "--output=out")
        assert f"text/vocab.txt is a file of --input and of --vocab={vocabulary}, and" in error
    assert cli.main(["data", "--input=text/0.txt", "--vocab=text", "--output=text/out", "--workers=1"]) == 0


def test_added_tokens_that_are_not_found_in_text_are_told(options, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(options.vocab, folder / "vocab.txt")
    size = len(Path(options.vocab).read_text().splitlines())
    (folder / "added_tokens.json").write_text(json.dumps({"[E1]": size}))
    given = options.input[0]
    for command in (
        [
            "data",
            f"--input={given}",
            f"--vocab={folder}",
            f"--output={options.output}",
            "--workers=1",
        ],
        ["vocab", f"--input={given}", f"--compare={folder}", f"--output={tmp_path}/new.txt", "--size=200"],
        ["inspect", "--input_format=text", f"--vocab={folder}", given],
    ):
        assert cli.main(command) in (0, 1)
        error = capsys.readouterr().err
        assert error.count(f"warning: {folder}: its added tokens [E1] are not recognized in text\n") == 1
