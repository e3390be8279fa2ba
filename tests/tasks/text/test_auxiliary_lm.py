"""Fine-tuning of a causal model with the loss of the next token, as GPT is fine-tuned."""

import json

import pytest
from support import pretrained as checkpoints
from support.fine_tuned import NO_DROPOUT, command

from bert_jax import cli, convert


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    for name, count in (("train", 96), ("dev", 24)):
        lines = ["red one,yes", "blue two,no"] * (count // 2)
        (directory / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return directory


@pytest.fixture(scope="module")
def causal(tmp_path_factory, vocabulary):
    return checkpoints.write(tmp_path_factory.mktemp("causal"), vocabulary, next_sentence=False, causal=True)


def arguments(files, workdir, pretrained, *more):
    return command(
        files,
        workdir,
        pretrained,
        "--config.lm_weight=0.5",
        "--config.max_seq_length=16",
        "--config.batch_size=16",
        "--config.optimizer.learning_rate=0.003",
        "--config.epochs=6",
        "--config.log_every=1",
        *NO_DROPOUT,
        *more,
    )


@pytest.mark.slow
def test_a_run_learns_both(files, causal, tmp_path, capsys):
    assert cli.main(arguments(files, tmp_path, causal)) == 0
    best = json.loads((tmp_path / "best.json").read_text())
    assert best["scores"]["accuracy"] == 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    assert steps[-1]["clm_loss"] < steps[0]["clm_loss"] - 1
    assert steps[0]["loss"] == pytest.approx(steps[0]["task_loss"] + 0.5 * steps[0]["clm_loss"], rel=1e-4)
    report = json.loads((tmp_path / "initialized.json").read_text())
    assert {"mlm/transform/kernel", "mlm/bias"} < set(report["loaded"])
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={tmp_path}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scores"] == pytest.approx(best["scores"])
    model = convert.load(tmp_path)
    assert model.head == "sequence_classification" and "mlm" not in model.groups
