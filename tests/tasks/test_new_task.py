"""A task with a new head needs only a folder and a config, and no change of existing code."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support.fine_tuned import NO_DROPOUT

from bert_jax import cli, tasks
from bert_jax.tasks import registry
from bert_jax.training.metrics import read_metrics

FOLDER = Path(__file__).parents[1] / "support" / "new_tasks"


@pytest.fixture(autouse=True)
def _ordinal(monkeypatch):
    """Adds a package to the folder of tasks."""
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(FOLDER)])
    registry.tasks.cache_clear()
    yield
    registry.tasks.cache_clear()


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("train", 96), ("dev", 24)):
        grades = rng.integers(3, size=count)
        texts = [f"{('one', 'two', 'three')[grade]} {rng.choice(['cat', 'dog'])}" for grade in grades]
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([("text", "grade"), *zip(texts, grades + 1, strict=True)])
    return tmp_path


@pytest.mark.long
def test_a_new_task_trains_evaluates_and_predicts(files, pretrained, capsys):
    run = files / "run"
    command = [
        "finetune",
        f"--config={FOLDER / 'ordinal_config.py'}",
        f"--workdir={run}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files}/train.csv",
        f"--config.data.eval={files}/dev.csv",
        "--config.data.text_a=text",
        "--config.data.label=grade",
        "--config.spread=3.0",
        "--config.max_seq_length=16",
        "--config.batch_size=16",
        "--config.epochs=4",
        "--config.optimizer.learning_rate=0.01",
        *NO_DROPOUT,
    ]
    assert cli.main(command) == 0
    best = json.loads((run / "best.json").read_text())
    assert list(best["scores"]) == ["accuracy", "mean_absolute_error"]
    losses = [line["loss"] for line in read_metrics(run, "eval")]
    assert losses[-1] < 0.9 * losses[0]
    assert json.loads((run / "config.json").read_text())["labels"] == ["1", "2", "3"]
    assert (run / "errors-dev.tsv").exists()

    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={run}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["scores"] == pytest.approx(best["scores"])
    output = files / "out.jsonl"
    assert cli.main(["predict", f"--workdir={run}", f"--input={files}/dev.csv", f"--output={output}"]) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(rows) == 24 and set(rows[0]["probabilities"]) == {"1", "2", "3"}
