"""Commands with URLs for what they read and write, beside a local work directory with drawn weights; nothing
is left in the current directory. tests/io/test_remote.py has work directories in a bucket, too."""

import os

import fsspec
import numpy as np
import pytest
from support import fine_tuned

from bert_jax import cli
from bert_jax.io import atomic, files

ROOT = "memory://url-paths"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three", "cat", "dog", "is", "big"]
ROWS = "review,color\none cat is big,red\ntwo dog,blue\nthree cat is big,blue\n"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    (directory / "vocab.in.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "loss": 2.0}\n')
    columns = {"text_a": "review", "label": "color"}
    return fine_tuned.make_run(
        directory, directory / "vocab.in.txt", "classification", ["blue", "red"], **columns
    )


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a command; returns (exit code, what it printed on both streams)."""
    monkeypatch.chdir(tmp_path)
    atomic.write_text(f"{ROOT}/dev.csv", ROWS)
    atomic.write_text(f"{ROOT}/texts.txt", "one cat\ntwo dog\n")
    atomic.write_text(f"{ROOT}/vocab.txt", "\n".join(WORDS) + "\n")

    def call(*arguments):
        code = cli.main(list(map(str, arguments)))
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    yield call
    fsspec.filesystem("memory").store.clear()
    assert os.listdir(tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments, written, begins",
    [
        (["predict", "--input={root}/dev.csv", "--output={root}/new/out.tsv"], "new/out.tsv", b"id\tpred"),
        (["predict", "--input={root}/dev.csv", "--output={root}/out.jsonl"], "out.jsonl", b'{"id"'),
        (["evaluate", "--input={root}/dev.csv", "--output={root}/out.csv"], "out.csv", b"id,pred"),
        (["plot", "--output={root}/curves.png"], "curves.png", b"\x89PNG"),
        (["plot", "--output={root}/curves.pdf"], "curves.pdf", b"%PDF"),
    ],
)
def test_a_run_with_remote_files(run, workdir, arguments, written, begins):
    code, said = run(*(each.format(root=ROOT) for each in arguments), f"--workdir={workdir}")
    assert code == 0, said
    assert files.read(f"{ROOT}/{written}").startswith(begins)


@pytest.mark.long
def test_models_between_places(run, workdir):
    assert run("convert", f"--input={workdir}", f"--output={ROOT}/hf", "--to=huggingface")[0] == 0
    assert {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json"} <= set(
        files.names(f"{ROOT}/hf")
    )
    code, said = run("convert", f"--input={ROOT}/hf", f"--output={ROOT}/hf", "--to=huggingface")
    assert code == 2 and f"--output={ROOT}/hf" in said
    vectors = []
    for checkpoint, output in ((f"{ROOT}/hf", f"{ROOT}/a.npy"), (workdir, f"{ROOT}/b.npy")):
        flags = f"--input={ROOT}/texts.txt", f"--output={output}"
        code, said = run("embed", f"--model={checkpoint}", *flags)
        assert code == 0, said
        vectors.append(files.load_array(output))
    np.testing.assert_array_equal(*vectors)
    code, said = run("inspect", f"{ROOT}/hf")
    assert code == 0 and "sound" in said
    assert run("inspect", f"{ROOT}/vocab.txt")[0] == 0


def test_the_demo_is_local(run):
    code, said = run("demo", f"--workdir={ROOT}/demo")
    assert code == 2 and "expected a local directory" in said


@pytest.mark.parametrize("command", ["evaluate", "predict", "finetune"])
def test_a_work_directory_that_checkpoints_cannot_be_in_is_refused(run, command, workdir):
    more = {
        "predict": [f"--input={ROOT}/dev.csv", f"--output={ROOT}/x.tsv"],
        "finetune": [
            "--config=finetune/classification",
            f"--config.init_from={workdir}",
            f"--config.data.train={ROOT}/dev.csv",
            "--config.data.text_a=review",
            "--config.data.label=color",
            "--config.max_seq_length=16",
        ],
    }.get(command, [])
    code, said = run(command, f"--workdir={ROOT}/run", *more)
    expected = "no such directory" if command != "finetune" else "expected a local path, gs:// or s3://"
    assert code == 2 and expected in said and said.count("error") == 1, said
    assert files.names(f"{ROOT}/run") == []
