"""A mistake of the user is one line that names the flag or the file, with exit code 2."""

import pytest
from support.embeddings import tiny_model

from bert_jax import cli
from bert_jax.convert.formats import work_directory

TINY = "--config=pretrain/tiny"
PAIRS = ["--input=pairs.tsv", "--text=a,b", "--output=out.jsonl", "--model=model"]

MISTAKES = [
    (["nonsense"], "'nonsense' is not a command"),
    (["bench", TINY, "--stepz=3"], "'stepz'"),
    (["bench", TINY, "--steps=many"], "--steps=many"),
    (["predict", "one text"], "'one text' is not a flag of predict"),
    (["pretrain", "--workdir=x"], "pretrain needs --config="),
    (["pretrain", TINY], "pretrain needs --workdir="),
    (["pretrain", "--workdir=x", "--config=pretrain/tinny"], "pretrain/tinny"),
    (["pretrain", "--workdir=x", "--config=finetune/squad"], "finetune/squad"),
    (["finetune", "--workdir=x", "--model=model", "--train=imbd"], "imbd: no such file"),
    (["finetune", "--workdir=x", "--config.epochs=1"], "finetune needs --config="),
    (["estimate", TINY, "--topology=h100:8", "--price_per_chip_hour=2"], "--price_per_chip_hour"),
    (["evaluate"], "exactly one of the flags --input, --workdir"),
    (["evaluate", "--records=x"], "--records needs --model"),
    (["evaluate", "--model=x", "--records=y", "--rows=-1"], "--rows=-1"),
    (["search", "--index=i", "--query=a", "--queries=b"], "at most one of the flags --query, --queries"),
    (["predict", "--workdir=x", "--input=-", "--output=x.tsv"], "--output has no effect with --input=-"),
    (["embed", "--model=model", "--input=texts.txt", "--output=x.txt"], "--output=x.txt: expected a name"),
    (["embed", "--model=model", "--input=none.txt", "--output=x.npy"], "--input=none.txt: no such file"),
    (["embed", "--model=none", "--input=texts.txt", "--output=x.npy"], "none"),
    (["embed", "--model=model", "--input=texts.txt", "--output=x.npy", "--layers=-1,a"], "--layers=-1,a"),
    (["embed", "--model=model", "--input=empty.txt", "--output=x.npy"], "--input=empty.txt"),
    (["embed", "--model=model", "--input=texts.txt", "--output=there.npy"], "--overwrite"),
    (["search", "--index=i", "--query=a"], "--index=i, a new index, needs --corpus"),
    (["search", "--index=i", "--corpus=none.txt", "--model=model"], "--corpus=none.txt: no such file"),
    (["search", "--index=gs://x/i"], "expected a local directory"),
    (["search", *PAIRS, "--top=1"], "--top has no effect with --input"),
    (["serve", "--model=x", "--host=nowhere.invalid"], "--host=nowhere.invalid"),
    (["convert", "--input=model", "--output=o", "--to=word"], "--to=word"),
    (["convert", "--input=model", "--output=o", "--to=onnx", "--layers=0"], "--layers has no effect"),
    (["pretrain", "--workdir=x", TINY, "--push_to=none"], "push_to=none: expected USER/NAME"),
    (["plot", "--model=model", "--text=a", "--output=x.html"], "--output=x.html"),
    (["plot", "--workdir=none"], "none: no metrics"),
    (["plot"], "exactly one of the flags --workdir, --model"),
    (["inspect", "none"], "none: no such path"),
    (["inspect", "model", "--vocab=vocab.txt"], "--vocab=vocab.txt: expected records"),
    (["sweep", "--experiment=none", "--workdir=x"], "none"),
    (["demo", "--workdir=gs://x"], "--workdir=gs://x"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    directory = tmp_path_factory.mktemp("mistakes")
    work_directory.FORMAT.write(tiny_model(directory), directory / "model")
    (directory / "texts.txt").write_text("a cat\n")
    for name in ("empty.txt", "there.npy"):
        (directory / name).touch()
    (directory / "pairs.tsv").write_text("a\tb\none\ttwo\n")
    return directory


@pytest.mark.parametrize("argv, words", MISTAKES, ids=[" ".join(argv) for argv, _ in MISTAKES])
def test_mistakes(folder, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(folder)
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert words in error and error.startswith("bert-jax: error: ") and error.count("\n") == 1, error
