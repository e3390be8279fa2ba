"""`finetune`, `evaluate`, `predict` and `fill-mask`, as a user calls them, on a tiny checkpoint."""

import csv
import json
import os
import shutil
import signal

import numpy as np
import pytest
from support import fine_tuned

from bert_jax import checkpoint, cli
from bert_jax.tasks.rows import outputs
from bert_jax.training.metrics import read_metrics


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts and colors, each of which is one of the words of its text."""
    directory, rng = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    words = "one two three cat dog bird the a is big small".split()
    for name, count in (("train", 90), ("dev", 29)):
        lines = ["review,color"]
        for color in rng.choice(["red", "blue"], count):
            text = rng.permutation([*rng.choice(words, rng.integers(1, 8)), color])
            lines.append(f"{' '.join(text)},{color}")
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return directory


def arguments(files, workdir, pretrained, *more):
    flags = (*fine_tuned.LEARNING, "--config.epochs=24", "--config.eval.every=72")
    return fine_tuned.command(files, workdir, pretrained, *flags, *more, text="review", label="color")


finetuned = fine_tuned.finetuned


@pytest.mark.long
def test_a_run_learns_and_reports(finetuned, pretrained, files):
    best = json.loads((finetuned / "best.json").read_text())
    assert best["scores"]["accuracy"] > 0.9
    assert (finetuned / "best" / str(best["step"])).is_dir()
    run = json.loads((finetuned / "config.json").read_text())
    assert run["labels"] == ["blue", "red"]
    card = (finetuned / "README.md").read_text()
    assert f"| accuracy | {best['scores']['accuracy']:.4g} |" in card and "Labels: blue, red." in card
    assert "--config.data.train=train.csv" in card and f"| started from | {pretrained.name} |" in card
    assert str(files) not in card and str(pretrained) not in card and str(finetuned) not in card
    assert run["config"]["model"]["hidden_size"] == 32 and run["config"]["steps"] == 144
    report = json.loads((finetuned / "initialized.json").read_text())
    assert report["source"].endswith("checkpoints/7")
    assert set(report["new"]) == {"classifier/kernel", "classifier/bias"}
    assert {name.split("/")[0] for name in report["unused"]} == {"mlm", "nsp"}
    lines = [json.loads(line) for line in (finetuned / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if line["kind"] == "eval"]
    assert evaluations[0]["best_so_far"] == 1  # the first one
    assert [line["step"] for line in evaluations] == [72, 144]
    assert {"loss", "accuracy", "f1_macro"} <= set(evaluations[0])
    assert best["scores"]["accuracy"] == max(line["accuracy"] for line in evaluations)


@pytest.mark.long
def test_evaluation_and_prediction_agree_with_training(finetuned, files, tmp_path, capsys):
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={finetuned}", "--json", f"--output={tmp_path}/dev.jsonl"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    best = json.loads((finetuned / "best.json").read_text())
    assert found["scores"] == pytest.approx(best["scores"])
    assert found["examples"] == 29
    predictions = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    with open(files / "dev.csv", newline="") as file:
        truth = [row["color"] for row in csv.DictReader(file)]
    right = [prediction["prediction"] == color for prediction, color in zip(predictions, truth, strict=True)]
    assert np.mean(right) == pytest.approx(best["scores"]["accuracy"])
    assert [prediction["id"] for prediction in predictions] == [str(i) for i in range(29)]
    assert sum(predictions[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)

    # The same texts as unlabeled TSV, with other names for the columns.
    texts = [row[0] for row in csv.reader((files / "dev.csv").read_text().splitlines()[1:])]
    (tmp_path / "new.tsv").write_text("key\tt\n" + "".join(f"k{i}\t{text}\n" for i, text in enumerate(texts)))
    command = f"predict --workdir={finetuned} --input={tmp_path}/new.tsv --output={tmp_path}/out.tsv"
    assert cli.main([*command.split(), "--text=t", "--id=key"]) == 0
    lines = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    assert lines[0] == ["id", "prediction", "p(blue)", "p(red)"]
    assert [line[0] for line in lines[1:]] == [f"k{i}" for i in range(29)]
    assert [line[1] for line in lines[1:]] == [prediction["prediction"] for prediction in predictions]
    kept = [line.split("\t") for line in (finetuned / "predictions-dev.tsv").read_text().splitlines()]
    np.testing.assert_allclose(
        [[float(p) for p in line[2:]] for line in kept[1:]],
        [[float(p) for p in line[2:]] for line in lines[1:]],
        atol=2e-6,
    )


@pytest.mark.long
def test_the_same_command_resumes(finetuned, files, pretrained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(finetuned, copy)
    (copy / "best.json").unlink()  # as if killed before it was written
    assert cli.main(arguments(files, copy, pretrained)) == 0
    said = capsys.readouterr().out
    assert "nothing to train: step 144 of 144 is done" in said
    assert json.loads((copy / "best.json").read_text())["step"] == 144
    assert cli.main(arguments(files, copy, pretrained, "--config.seed=1")) == 2
    assert "seed is 0 there and 1 here" in capsys.readouterr().err
    with open(files / "train.csv") as file:
        (tmp_path / "train.csv").write_text(file.read() + "one more,red\n")
    shutil.copy(files / "dev.csv", tmp_path)
    command = arguments(files, copy, pretrained, f"--config.data.train={tmp_path}/train.csv")
    assert cli.main(command) == 2
    assert "belongs to another run" in capsys.readouterr().err


@pytest.mark.long
def test_sigterm_in_an_evaluation_does_not_wait_for_its_end(files, pretrained, tmp_path, monkeypatch, capsys):
    """It comes before the second of two batches, with a step that is not saved yet."""
    changes = ["--config.epochs=1", "--config.eval.every=2", "--config.checkpoint.every=0"]
    predicted, real = [], outputs.make_predict

    def make_predict(*arguments):
        predict = real(*arguments)

        def call(params, batch):
            predicted.append(batch)
            if len(predicted) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return predict(params, batch)

        call.lower = predict.lower
        return call

    monkeypatch.setattr(outputs, "make_predict", make_predict)
    assert cli.main(arguments(files, tmp_path / "run", pretrained, *changes)) == 3
    assert "stopped at step 2, saved; run the same command to resume" in capsys.readouterr().err
    assert len(predicted) <= 2 and not (tmp_path / "run" / "best.json").exists()
    assert checkpoint.verify(tmp_path / "run" / "checkpoints" / "2")
    monkeypatch.setattr(outputs, "make_predict", real)
    assert cli.main(arguments(files, tmp_path / "run", pretrained, *changes)) == 0
    assert next(line["step"] for line in read_metrics(tmp_path / "run", "eval")) == 2


def test_another_vocabulary_is_refused(files, pretrained, tmp_path, vocabulary, capsys):
    other = tmp_path / "vocab.txt"
    other.write_text(vocabulary.read_text() + "more\n")
    assert cli.main(arguments(files, tmp_path / "run", pretrained, f"--config.vocab={other}")) == 2
    assert "is not the vocabulary of the checkpoint" in capsys.readouterr().err
