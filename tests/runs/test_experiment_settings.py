"""The settings that the results of an experiment were computed with: no mean is over several."""

import shutil

import pytest

from bert_jax.errors import UserError
from bert_jax.runs.experiment import runner, settings
from bert_jax.settings import defaults
from bert_jax.settings.experiments import Arm, Budget, Experiment, Finetuning, HeldOut, Pretraining


@pytest.fixture
def judged(files, tmp_path, monkeypatch):
    """Runs a small experiment whose trainings give scores at once; returns its results.

    The arguments are fields of the pre-training, the epochs of the fine-tuning, the fields that the second
    arm changes, the file to train on, the number of seeds, and the budget.
    """
    monkeypatch.setattr(runner.step_times, "read_manifests", lambda directories: {})
    monkeypatch.setattr(runner.pretrain, "pretrain", lambda config, directory, explicit: None)
    monkeypatch.setattr(runner, "spent_by_step", lambda directory: ([3], [1.0], [9.0]))
    monkeypatch.setattr(runner.finetune, "finetune", lambda config, directory: {"scores": {"accuracy": 0.5}})

    def run(batch_size=8, log_every=5, epochs=1.0, tune=(), train="train.csv", seeds=1, budget=None):
        def config(run):
            c = defaults.pretrain("tiny")
            c.batch_size, c.log_every = batch_size, log_every
            return c

        fields = {"data.train": str(files / train), "data.eval": str(files / "dev.csv"), "epochs": epochs}
        fields |= {"data.text_a": "text", "data.label": "color"}
        one = Experiment(
            "Settings",
            [Arm("one", Pretraining(config, "rows")), Arm("two", start="one", tune={"colors": dict(tune)})],
            [Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
            budget or Budget(steps=3),
            seeds=seeds,
            records={"rows": ()},
            vocabulary=(),
        )
        work = runner.Runner(one, str(tmp_path), runner.Inputs({"rows": str(tmp_path / "records")}))
        work.run()
        return [(row["arm"], row["seed"]) for row in work.results.rows]

    return run


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"batch_size": 16},
            "arm 'one', pretraining, with other settings: batch_size is 8 there and 16 here",
        ),
        ({"epochs": 2.0}, "arm 'one', colors, with other settings: epochs is 1.0 there and 2.0 here; undo"),
        (
            {"tune": {"from_scratch": True}},
            "arm 'two', colors, .*: from_scratch is False there and True here",
        ),
        ({"train": "dev.csv"}, "arm 'one', colors, .* files.train is '?[0-9a-f]{12}'? there and"),
    ],
)
def test_results_with_other_settings_are_not_mixed(judged, change, message):
    assert judged() == [("one", 0), ("one", 0), ("two", 0)]
    with pytest.raises(UserError, match=message):
        judged(**change, seeds=2)
    assert judged(log_every=6, seeds=2)[3:] == [("one", 1), ("one", 1), ("two", 1)]


def test_results_with_other_records_are_not_mixed(judged, tmp_path, monkeypatch):
    """A directory that does not exist is not compared."""
    judged()
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "manifest.json").touch()
    digests = iter(["a" * 32, "a" * 32, "b" * 32])
    monkeypatch.setattr(settings.manifests, "read", lambda directory: {"fingerprint": next(digests)})
    (tmp_path / "settings.json").unlink()
    assert len(judged(seeds=2)) == 6 and len(judged(seeds=3)) == 9
    with pytest.raises(UserError, match=r"arm 'one', pretraining, .*: files.records is a+ there and b+ here"):
        judged(seeds=4)
    shutil.rmtree(tmp_path / "records")
    assert len(judged(seeds=4)) == 12


def test_held_out_records_are_compared(tmp_path, monkeypatch):
    measure = HeldOut("held-out", "rows")
    assert "files.records" not in settings.of_held_out(measure, str(tmp_path)).values
    (tmp_path / "manifest.json").touch()
    monkeypatch.setattr(settings.manifests, "read", lambda directory: {"fingerprint": "1"})
    assert settings.of_held_out(measure, f"{tmp_path},{tmp_path}").values["files.records"] == "1+1"


def test_results_of_earlier_versions_have_no_settings_and_get_more_seeds(judged, tmp_path):
    judged()
    (tmp_path / "settings.json").unlink()
    assert len(judged(batch_size=16, seeds=2)) == 6
    with pytest.raises(UserError, match="batch_size is 16 there and 8 here"):
        judged(seeds=3)


def test_steps_are_timed_again_where_the_settings_of_an_arm_have_changed(judged, monkeypatch):
    """An arm that has no result yet may change; its times were those of other steps."""
    seconds = {8: 0.5, 16: 1.0}
    timed, steps = [], []

    def timing(self, arm, config, explicit):
        timed.append((arm, config.batch_size))
        return seconds[config.batch_size]

    def stopped(config, directory, explicit):
        steps.append(config.steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.StepTimes, "_time", timing)
    monkeypatch.setattr(runner.pretrain, "pretrain", stopped)
    for batch_size in (8, 8, 16, 16, 8):
        with pytest.raises(KeyboardInterrupt):
            judged(batch_size=batch_size, budget=Budget(seconds=6))
    assert timed == [("one", 8)] * 2 + [("one", 16)] * 2 + [("one", 8)] * 2
    assert steps == [12, 12, 6, 6, 12]
