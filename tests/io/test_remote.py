"""Every command with URLs for all paths, on an emulator of Google Cloud Storage. The current directory stays
empty; code that mistakes a URL for a local path would create a folder named `gs:` there."""

import os

import fsspec
import numpy as np
import pytest
from support import fine_tuned, processes, remote

from bert_jax import cli
from bert_jax.io import files
from bert_jax.runs import sweep

pytestmark = pytest.mark.slow

WORDS = "one two three cat dog bird the a is big small red blue".split()


def rows(count, seed):
    rng = np.random.default_rng(seed)
    return [
        (" ".join(rng.choice(WORDS[:-2], 4)) + f" {color}", color)
        for color in rng.choice(["red", "blue"], count)
    ]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """An empty current directory for the commands, with separate caches."""
    directory, patch = tmp_path_factory.mktemp("here"), pytest.MonkeyPatch()
    patch.chdir(directory)
    patch.setenv("BERT_JAX_RECORD_CACHE", str(tmp_path_factory.mktemp("records")))
    yield directory
    patch.undo()


@pytest.fixture(scope="module")
def bucket(here):
    with remote.bucket() as url, processes.quick_compilation():
        rng = np.random.default_rng(0)
        documents = (". ".join(" ".join(rng.choice(WORDS, 12)) for _ in range(12)) for _ in range(40))
        write(f"{url}/corpus/a.txt", "\n\n".join(documents))
        for name, count, seed in (("train", 48, 0), ("dev", 16, 1)):
            lines = ["text,label", *(",".join(row) for row in rows(count, seed))]
            write(f"{url}/task/{name}.csv", "\n".join(lines) + "\n")
        yield url


def write(url, text):
    with fsspec.open(url, "w") as file:
        file.write(text)


@pytest.fixture
def run(here, capsys):
    """Runs a command and returns its output. Asserts success and an empty current directory."""

    def call(*arguments):
        code = cli.main(list(map(str, arguments)))
        captured = capsys.readouterr()
        assert code == 0, captured.err
        assert os.listdir(here) == []
        return captured.out

    return call


FIELDS = {"optimizer.warmup_steps": 1, "eval.every": 2, "checkpoint.every": 2}


def test_from_text_to_predictions(bucket, run):
    text, vocabulary, records = f"--input={bucket}/corpus/*.txt", f"{bucket}/vocab.txt", f"{bucket}/records"
    run("vocab", text, "--size=100", "--min_frequency=1", f"--output={vocabulary}")
    made = f"--vocab={vocabulary}", f"--output={records}", "--max_seq_length=32", "--eval_fraction=0.2"
    run("data", text, *made)
    assert "sound" in run("inspect", records) and "sound" in run("inspect", vocabulary)

    pretrained, left_by_a_killed_run = f"{bucket}/run", f"{bucket}/run/checkpoints/6/part"
    run(*processes.command(pretrained, records, steps=4, **FIELDS))
    write(left_by_a_killed_run, "x")
    said = run(*processes.command(pretrained, records, steps=6, **FIELDS), "--allow_changes")
    assert "resumed from step 4" in said and not files.exists(left_by_a_killed_run)
    assert files.names(f"{pretrained}/checkpoints") == ["2", "4", "6"]
    assert files.names(f"{pretrained}/tensorboard") and "sound" in run("inspect", pretrained)
    run("plot", f"--workdir={pretrained}", f"--output={bucket}/curves.svg")
    assert b"<svg" in files.read(f"{bucket}/curves.svg")

    tuned, task = f"{bucket}/tuned", f"{bucket}/task"
    flags = ("--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=2")
    run(*fine_tuned.command(task, tuned, pretrained, *flags))
    assert {"best", "best.json", "README.md", "errors-dev.tsv"} <= set(files.names(tuned))
    run("evaluate", f"--workdir={tuned}", f"--output={bucket}/evaluated.tsv")
    assert files.read(f"{bucket}/evaluated.tsv").count(b"\n") == 17
    output = f"{bucket}/predicted.jsonl"
    assert "wrote gs://" in run(
        "predict", f"--workdir={tuned}", f"--input={task}/dev.csv", f"--output={output}"
    )
    assert files.read(output).count(b"probabilities") == 16
    run(*fine_tuned.command(task, f"{bucket}/seeds", pretrained, *flags, "--seeds=2", "--config.epochs=1"))
    best = sweep.read_summary(f"{bucket}/seeds")["run"]
    assert best.startswith(f"{bucket}/seeds/seed-") and files.exists(f"{best}/best.json")

    run("convert", f"--input={pretrained}", f"--output={bucket}/hf", "--to=huggingface")
    assert {"config.json", "model.safetensors", "vocab.txt"} <= set(files.names(f"{bucket}/hf"))
    run("convert", f"--input={bucket}/hf", f"--output={bucket}/native", "--to=bert_jax")
    vectors = []
    write(f"{bucket}/texts.txt", "the cat is big\na dog\n")
    for name in ("hf", "native"):
        output = f"{bucket}/{name}.npy"
        run("embed", f"--model={bucket}/{name}", f"--input={bucket}/texts.txt", f"--output={output}")
        vectors.append(files.load_array(output))
    assert vectors[0].shape == (2, 32)
    np.testing.assert_array_equal(vectors[0], vectors[1])
    assert "cat" in run("fill-mask", f"--model={bucket}/native", "the [MASK] is big", "--top=60")


def test_a_new_machine_has_the_programs_that_another_compiled(bucket, tmp_path, monkeypatch):
    records = processes.write_records(tmp_path / "records")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    programs = []
    for number in range(2):
        for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
            monkeypatch.setenv(name, str(tmp_path / f"{name}{number}"))
            os.mkdir(tmp_path / f"{name}{number}")
        fields = {"steps": 1, "optimizer.warmup_steps": 0, "checkpoint.every": 0}
        code, output = processes.run(processes.command(f"{bucket}/runs/{number}", records, **fields))
        assert code == 0, output
        programs.append(files.names(f"{bucket}/runs/xla_cache"))
    assert any(name.startswith("jit_train_step") for name in programs[0])
    assert programs[0] == programs[1]  # a different key would have added a program
