"""Every command with URLs for all paths, on an emulator of Google Cloud Storage. The current directory stays
empty; code that mistakes a URL for a local path would create a folder named `gs:` there."""

import json
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


@pytest.fixture(scope="module")
def commands(bucket):
    """Runs each command once; later commands use its output."""
    done = set()

    def after(name, *arguments):
        if name not in done:
            assert cli.main(list(arguments)) == 0
            done.add(name)
        return f"{bucket}/{name}"

    return after


@pytest.fixture(scope="module")
def vocabulary(bucket, commands):
    flags = f"--input={bucket}/corpus/*.txt", "--size=100", "--min_frequency=1"
    return commands("vocab.txt", "vocab", *flags, f"--output={bucket}/vocab.txt")


@pytest.fixture(scope="module")
def records(bucket, vocabulary, commands):
    flags = f"--input={bucket}/corpus/*.txt", f"--vocab={vocabulary}", "--max_seq_length=32"
    return commands("records", "data", *flags, f"--output={bucket}/records", "--eval_fraction=0.2")


@pytest.fixture(scope="module")
def pretrained(bucket, records, commands):
    fields = {"steps": 4, "optimizer.warmup_steps": 1, "eval.every": 2, "checkpoint.every": 2}
    return commands("run", *processes.command(f"{bucket}/run", records, **fields))


@pytest.fixture(scope="module")
def finetuned(bucket, pretrained, commands):
    return commands("tuned", *finetune(bucket, pretrained, "tuned"))


def finetune(bucket, pretrained, name, *more):
    flags = ("--config.max_seq_length=16", "--config.batch_size=16", "--config.epochs=2", *more)
    return fine_tuned.command(f"{bucket}/task", f"{bucket}/{name}", pretrained, *flags)


def test_vocabulary_and_records(bucket, records, run):
    assert files.exists(f"{records}/manifest.json")
    assert "sound" in run("inspect", records)
    assert "sound" in run("inspect", f"{bucket}/vocab.txt")


def test_pretraining_and_resuming(bucket, records, pretrained, run):
    left_by_a_killed_run = f"{pretrained}/checkpoints/6/part"
    write(left_by_a_killed_run, "x")
    said = run(
        *processes.command(
            pretrained, records, **{"steps": 6, "optimizer.warmup_steps": 1, "checkpoint.every": 2}
        ),
        "--allow_changes",
    )
    assert "resumed from step 4" in said
    assert files.names(f"{pretrained}/checkpoints") == ["2", "4", "6"]
    assert not files.exists(left_by_a_killed_run)
    assert files.names(f"{pretrained}/tensorboard")
    assert "sound" in run("inspect", pretrained)
    run("plot", f"--workdir={pretrained}", f"--output={bucket}/curves.svg")
    assert b"<svg" in files.read(f"{bucket}/curves.svg")


def test_a_new_machine_has_the_programs_that_another_compiled(bucket, records, tmp_path, monkeypatch):
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


def test_finetuning_evaluation_and_prediction(bucket, finetuned, run):
    assert {"best", "best.json", "README.md", "errors-dev.tsv"} <= set(files.names(finetuned))
    run("evaluate", f"--workdir={finetuned}", f"--output={bucket}/evaluated.tsv")
    assert files.read(f"{bucket}/evaluated.tsv").count(b"\n") == 17
    flags = f"--workdir={finetuned}", f"--input={bucket}/task/dev.csv", f"--output={bucket}/predicted.jsonl"
    assert "wrote gs://" in run("predict", *flags)
    predicted = files.read(f"{bucket}/predicted.jsonl").decode().splitlines()
    assert len(predicted) == 16 and "probabilities" in json.loads(predicted[0])


def test_seeds(bucket, pretrained, run):
    run(*finetune(bucket, pretrained, "seeds", "--seeds=2", "--config.epochs=1"))
    best = sweep.read_summary(f"{bucket}/seeds")["run"]
    assert best.startswith(f"{bucket}/seeds/seed-") and files.exists(f"{best}/best.json")


def test_conversion_both_ways_and_embedding(bucket, pretrained, run):
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
