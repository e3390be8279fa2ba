"""Experiments whose process is killed, or that two processes run: no result is lost."""

import json

import pytest

from bert_jax.errors import UserError
from bert_jax.runs.experiment import results, runner
from bert_jax.settings.experiments import Arm, Experiment, Finetuning
from bert_jax.workdir.lock import Lock


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


def test_two_runners_of_one_directory_do_not_run_at_a_time(experiment, tmp_path):
    make, _ = experiment
    other = Lock(tmp_path)
    other.acquire()
    with pytest.raises(UserError, match=r"in use by another run .*; wait for it, .* another --workdir"):
        make().run(["one"])
    other.release()
    assert not (tmp_path / results.FILE).exists()


def test_a_runner_keeps_the_results_that_another_one_has_added_since_its_start(experiment, tmp_path):
    make, _ = experiment
    first, second = make(), make()
    first.run(["one"])
    second.run(["two"])
    assert [row["arm"] for row in json.loads((tmp_path / results.FILE).read_text())] == ["one", "two"]
    first.run()
    assert first.results.rows == second.results.rows
