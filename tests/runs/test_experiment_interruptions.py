"""Experiments whose process is killed: what it leaves, and how the next one goes on."""

import json

import pytest

from bert_jax.runs.experiment import results, runner
from bert_jax.settings.experiments import Arm, Experiment, Finetuning


@pytest.fixture
def experiment(files, tmp_path, monkeypatch):
    """Returns a runner of one fine-tuning for each of the arms one and two, and their work directories.

    The fine-tunings leave weights and give a score at once.
    """

    def finetune(config, directory):
        for name in ("checkpoints", "best"):
            (tmp_path / directory / name).mkdir(parents=True, exist_ok=True)
        return {"scores": {"accuracy": 0.5}}

    monkeypatch.setattr(runner.finetune, "finetune", finetune)
    fields = {"data.train": str(files / "train.csv"), "data.eval": str(files / "dev.csv")}
    fields |= {"data.text_a": "text", "data.label": "color"}
    one = Experiment(
        "Interruptions",
        [Arm("one"), Arm("two")],
        [Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
        seeds=1,
    )

    def make():
        return runner.Runner(one, str(tmp_path), runner.Inputs(checkpoint="model"))

    return make, {name: tmp_path / name / "seed-0" / "colors" for name in ("one", "two")}


def left(workdir):
    """Returns the names of the weights that a fine-tuning has left."""
    return sorted(path.name for path in workdir.iterdir())


def test_weights_stay_until_the_result_is_recorded(experiment, monkeypatch):
    make, workdirs = experiment
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(results.Results, "add", interrupt)
        make().run(["one"])
    assert left(workdirs["one"]) == ["best", "checkpoints"]
    make().run(["one"])
    assert left(workdirs["one"]) == []


def interrupt(*result):
    raise KeyboardInterrupt


def test_weights_that_a_killed_process_left_are_removed(experiment, tmp_path):
    make, workdirs = experiment
    make().run()
    (workdirs["one"] / "checkpoints").mkdir()
    before = json.loads((tmp_path / results.FILE).read_text())
    make().run()
    assert left(workdirs["one"]) == [] and json.loads((tmp_path / results.FILE).read_text()) == before
