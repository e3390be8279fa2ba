"""A task with a new head needs only a folder and a config, and no change of existing code."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from support.fine_tuned import LEARNING, command, learn, predict

from bert_jax import tasks
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
    flags = ["--config.spread=3.0", *LEARNING, "--config.epochs=4", "--config.optimizer.learning_rate=0.01"]
    config = FOLDER / "ordinal_config.py"
    _, best = learn(command(files, run, pretrained, *flags, config=config, label="grade"), run, capsys)
    assert list(best) == ["accuracy", "mean_absolute_error"]
    losses = [line["loss"] for line in read_metrics(run, "eval")]
    assert losses[-1] < 0.9 * losses[0]
    assert json.loads((run / "config.json").read_text())["labels"] == ["1", "2", "3"]
    assert (run / "errors-dev.tsv").exists()
    rows = predict(run, files / "dev.csv")
    assert len(rows) == 24 and set(rows[0]["probabilities"]) == {"1", "2", "3"}
