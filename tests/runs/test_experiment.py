"""Experiments: budgets in steps, arms and measures that are run once, the table, and mistakes."""

import json
import re
import shutil

import pytest

from bert_jax import cli, convert
from bert_jax.commands import sweep as sweep_command
from bert_jax.errors import UserError
from bert_jax.runs import pretrain
from bert_jax.runs.experiment import finetunings, report, runner
from bert_jax.settings import config_files, defaults, experiments
from bert_jax.settings.config_files import ArmConfig
from bert_jax.settings.experiments import (
    Arm,
    Budget,
    Comparison,
    Experiment,
    Finetuning,
    HeldOut,
    Pretraining,
)
from bert_jax.settings.typed import pretrain_config

pytestmark = pytest.mark.usefixtures("quick_compilation")

FILE = """
from bert_jax.settings import defaults
from bert_jax.settings.experiments import *

def config(batch_size):
    def get(run):
        c = defaults.pretrain("tiny")
        c.model.update(dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64))
        c.model.max_position_embeddings = 32
        c.batch_size, c.optimizer.warmup_steps = batch_size, run.share(0.1)
        return c
    return get

def get_experiment(words="120"):
    fields = {"data.train": TRAIN, "data.eval": DEV, "data.text_a": "text", "data.label": "color"}
    fields |= {"max_seq_length": 16, "epochs": 1.0}
    return Experiment(
        "Small against large batches",
        arms=[
            Arm("small", Pretraining(config(8), "rows")),
            Arm("large", Pretraining(config(16), "rows", share=0.5)),
            Arm("from scratch", start="small", tune={"colors": {"from_scratch": True}}),
        ],
        measures=[Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
        budget=Budget(steps=4),
        seeds=1,
        vocabulary=(f"--size={words}",),
        records={"rows": ("--max_seq_length=32", "--nsp=none", "--eval_fraction=0.2")},
        comparisons=[Comparison("shapes", {"large": 0.9, "small": 0.8}, ["colors"])],
        published="The paper has other figures.",
    )
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, files):
    """The file of an experiment, and a text for it."""
    directory = tmp_path_factory.mktemp("experiment")
    code = FILE.replace("TRAIN", repr(str(files / "train.csv"))).replace("DEV", repr(str(files / "dev.csv")))
    (directory / "batches.py").write_text(code)
    lines = [
        f"the {'red' if i % 3 else 'blue'} cat number {i} sees a dog .\n" + "\n" * (i % 4 == 0)
        for i in range(300)
    ]
    (directory / "text.txt").write_text("".join(lines))
    return directory


@pytest.fixture
def sweep(experiment, tmp_path, capsys):
    """Runs the command; returns (exit code, stdout, stderr)."""

    def run(*more, workdir=tmp_path / "sweep"):
        code = cli.main(
            [
                *("sweep", f"--experiment={experiment / 'batches.py'}", f"--workdir={workdir}"),
                *(f"--input={experiment / 'text.txt'}", *more),
            ]
        )
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.slow
def test_every_arm_is_trained_and_judged_once_and_seeds_are_added(sweep, tmp_path):
    code, shown, error = sweep()
    assert code == 0, error
    found = json.loads((tmp_path / "sweep" / "results.json").read_text())
    assert [(row["arm"], row["measure"]) for row in found] == [
        *(("small", "pretraining"), ("small", "colors")),
        *(("large", "pretraining"), ("large", "colors")),
        ("from scratch", "colors"),
    ]
    spent = {row["arm"]: row["scores"] for row in found if row["measure"] == "pretraining"}
    assert (spent["small"]["steps"], spent["large"]["steps"]) == (4, 2)
    assert spent["small"]["tokens"] == pytest.approx(spent["large"]["tokens"])
    reports = [
        tmp_path / "sweep" / arm / "seed-0" / "colors" / "initialized.json"
        for arm in ("small", "from-scratch")
    ]
    assert [path.exists() for path in reports] == [True, False]
    assert not (tmp_path / "sweep" / "small" / "seed-0" / "colors" / "checkpoints").exists()
    table = (tmp_path / "sweep" / "README.md").read_text()
    assert table in shown and "| small | 4 | " in table and "The paper has other figures." in table
    assert {"curves.png", "scores.png"} <= {path.name for path in (tmp_path / "sweep").iterdir()}

    code, shown, _ = sweep("--seeds=2", "--arms=small")
    assert code == 0 and "seed 0" not in shown
    rows = json.loads((tmp_path / "sweep" / "results.json").read_text())
    assert rows[:5] == found and [(row["arm"], row["seed"]) for row in rows[5:]] == [("small", 1)] * 2
    table = (tmp_path / "sweep" / "README.md").read_text()
    assert "±" in table
    assert "| shapes | large > small | " in table and "0 reversed, 1 not significant |" in table

    for arm in ("small", "large"):  # their scores stay
        shutil.rmtree(tmp_path / "sweep" / arm)
    code, shown, error = sweep("--seeds=2", "--table")
    assert code == 0 and "| small | 2 | " in shown, error


@pytest.mark.slow
def test_fine_tunings_train_on_the_first_rows_alone(sweep, tmp_path):
    code, shown, error = sweep("--arms=small", "--train_rows=10")
    assert code == 0, error
    assert "Fine-tunings train on the first 10 rows of their data." in shown
    config = json.loads((tmp_path / "sweep" / "small" / "seed-0" / "colors" / "config.json").read_text())
    assert config["config"]["train_rows"] == 10
    for more in ([], ["--train_rows=11"]):
        code, _, error = sweep("--arms=small", *more)
        assert code == 2 and "holds an experiment with the train_rows 10" in error


@pytest.mark.slow
def test_a_budget_of_seconds_is_timed_once_and_becomes_steps(sweep, tmp_path):
    code, _, error = sweep("--seconds=0.5", "--arms=small")
    assert code == 0, error
    times = json.loads((tmp_path / "sweep" / "step_times.json").read_text())
    assert list(times) == ["small", "large"] and list(times["small"]) == ["8 rows"]
    rows = json.loads((tmp_path / "sweep" / "results.json").read_text())
    scores = rows[0]["scores"]
    step = times["small"]["8 rows"]
    assert scores["steps"] * step == pytest.approx(scores["seconds"])
    assert scores["steps"] == 1 or scores["seconds"] <= 0.5 < scores["seconds"] + step
    written = (tmp_path / "sweep" / "step_times.json").stat().st_mtime_ns
    assert sweep("--seconds=0.5", "--arms=small")[0] == 0
    assert (tmp_path / "sweep" / "step_times.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    "more, message",
    [
        (["--arms=smallest"], "--arms: 'smallest' is unknown; did you mean small?"),
        (["--measures=speed"], "--measures: 'speed' is unknown; expected one of colors"),
        (["--seeds=0"], "--seeds=0: expected 1 or more"),
        (["--train_rows=0"], "--train_rows=0: expected 1 or more"),
        (["--steps=3", "--tokens=5"], "expected one of the three to be more than 0"),
        (["--steps=-3"], "expected one of the three to be more than 0"),
        (["--data=glue"], "--data=glue: expected NAME=DIR"),
        (["--experiment=masks.py"], "there is no such file"),
    ],
)
def test_mistakes_are_one_line(sweep, more, message):
    code, _, error = sweep(*more)
    assert code == 2 and message in error and error.count("\n") == 1


def test_missing_files_of_fine_tunings_are_found_before_the_first_run(experiment, sweep, tmp_path):
    code = (experiment / "batches.py").read_text().replace("dev.csv", "dev2.csv")
    (tmp_path / "missing.py").write_text(code)
    found, _, error = sweep(f"--experiment={tmp_path / 'missing.py'}")
    assert found == 2 and "colors: " in error and "dev2.csv: no such file; did you mean" in error
    assert not (tmp_path / "sweep" / "results.json").exists()


def test_metrics_that_no_fine_tuning_reports_are_refused_before_the_first_run(experiment, sweep, tmp_path):
    code = (experiment / "batches.py").read_text().replace('("accuracy",)', '("f1",)')
    (tmp_path / "metrics.py").write_text(code)
    found, _, error = sweep(f"--experiment={tmp_path / 'metrics.py'}")
    assert found == 2 and "its fine-tuning reports accuracy, f1_macro, and not 'f1'" in error
    assert not (tmp_path / "sweep" / "records").exists()


def test_a_measure_without_an_evaluation_file_is_refused_before_the_first_run(experiment, sweep, tmp_path):
    code = re.sub('"data.eval": [^,]*, ', "", (experiment / "batches.py").read_text())
    (tmp_path / "train.py").write_text(code)
    found, _, error = sweep(f"--experiment={tmp_path / 'train.py'}")
    assert found == 2 and "colors: no file to evaluate on; set the field data.eval" in error
    assert not (tmp_path / "sweep" / "records").exists()


def test_metrics_that_depend_on_the_data_are_refused_without_a_traceback():
    measure = Finetuning("tags", "finetune/tagging", "", ("f1", "precision"))
    assert finetunings.scores_of(measure, {"precision": 0.5, "accuracy": 0.9, "f1": 0.7}) == {
        "f1": 0.7,
        "precision": 0.5,
    }
    with pytest.raises(UserError, match=r"measure 'tags': .* reports accuracy, f1_macro, and not 'f1'"):
        finetunings.scores_of(measure, {"accuracy": 0.9, "f1_macro": 0.5})


def test_another_budget_needs_another_directory(sweep, tmp_path):
    (tmp_path / "sweep").mkdir()
    described = {"title": "Small against large batches", "budget": {"steps": 9, "tokens": 0, "seconds": 0.0}}
    (tmp_path / "sweep" / "experiment.json").write_text(json.dumps(described))
    code, _, error = sweep()
    assert code == 2 and "holds an experiment with the budget" in error


def tiny(run):
    return defaults.pretrain("tiny")


def test_a_config_of_an_arm_sees_the_models_of_earlier_arms(tmp_path):
    seen = []

    def student(run):
        seen.append(run.model("teacher"))
        return tiny(run)

    arms = [
        Arm("teacher", Pretraining(tiny, "rows")),
        Arm("student", Pretraining(student, "rows")),
    ]
    one = Experiment("Students", arms, [], Budget(steps=3), vocabulary=(), records={"rows": ()})
    work = runner.Runner(one, str(tmp_path), runner.Inputs({"rows": "records"}))
    assert not work.has_model("teacher", 0)
    with pytest.raises(UserError, match="arm 'student' needs the model of 'teacher', which has not run"):
        work.run(["student"])
    work.results.add("teacher", 0, experiments.PRETRAINING, {"steps": 3.0})
    work._pretraining_config(arms[1], 0, 3)
    assert seen == [str(tmp_path / "teacher" / "seed-0" / "pretraining")]


@pytest.mark.parametrize("by_hand", [False, True])
def test_an_arm_that_starts_from_a_checkpoint_keeps_the_fields_that_it_changes(
    by_hand, pretrained, tmp_path, monkeypatch
):
    """The other fields of its architecture are those of the checkpoint."""
    changed = ArmConfig("pretrain/continue", {"model.classifier_pooling": "mean"})

    def config(run):
        c = changed(run)
        c.init_from, c.model.layer_norm_eps = run.checkpoint, 1e-5
        return c

    pretraining = Pretraining(config, "rows", explicit=changed.explicit)
    if not by_hand:
        fields = changed.fields | {"init_from": str(pretrained), "model.layer_norm_eps": 1e-12}
        pretraining = Pretraining(ArmConfig("pretrain/continue", fields), "rows")
    models = []

    def adopt(config, directory, explicit):
        typed = pretrain_config.pretraining(config)
        models.append(pretrain.adopt_architecture(typed, explicit)[0].model)

    monkeypatch.setattr(runner.pretrain, "pretrain", adopt)
    monkeypatch.setattr(runner, "spent_by_step", lambda directory: ([3], [1.0], [9.0]))
    monkeypatch.setattr(runner.step_times, "read_manifests", lambda directories: {})
    arms = [Arm("mean", pretraining)]
    one = Experiment("Pooling", arms, [], Budget(steps=3), seeds=1, vocabulary=(), records={"rows": ()})
    runner.Runner(one, str(tmp_path), runner.Inputs({"rows": "records"}, checkpoint=str(pretrained))).run()
    theirs = convert.load_architecture(pretrained)[0]
    assert [model.classifier_pooling for model in models] == ["mean"]
    assert [(m.hidden_size, m.layer_norm_eps) for m in models] == [(theirs.hidden_size, 1e-12)]
    recorded = json.loads((tmp_path / "settings.json").read_text())["mean"]["pretraining"]
    assert "classifier_pooling" in recorded["explicit"]


def test_an_experiment_without_pretraining_needs_a_checkpoint_and_the_files(tmp_path):
    tasks = [Finetuning("mrpc", "finetune/glue:mrpc", "glue", ("f1",))]
    one = Experiment("Rates", [Arm("high", tune={"*": {"optimizer.learning_rate": 1e-4}})], tasks)
    assert one.arms[0].fields("mrpc") == {"optimizer.learning_rate": 1e-4}
    with pytest.raises(UserError, match="starts from a trained model; give --model=DIR"):
        runner.Runner(one, str(tmp_path), runner.Inputs())
    with pytest.raises(UserError, match="give --data=glue=DIR"):
        runner.Runner(one, str(tmp_path), runner.Inputs(checkpoint="model"))


def test_a_table_needs_no_inputs_and_a_directory_that_an_experiment_has(experiment, tmp_path, capsys):
    command = ("sweep", f"--experiment={experiment / 'batches.py'}", f"--workdir={tmp_path / 'sweep'}")
    assert cli.main([*command, "--table"]) == 2
    assert "holds no experiment yet; leave out --table to run it" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()

    code = (
        (experiment / "batches.py")
        .read_text()
        .replace('"finetune/classification", ""', '"finetune/conll", "conll"')
    )
    code = code.replace('("accuracy",), fields', '("f1",)')
    (tmp_path / "tags.py").write_text(code)
    one = config_files.load_experiment(str(tmp_path / "tags.py"))
    inputs = runner.Inputs({"rows": "records"}, {"conll": str(tmp_path)}, "model")
    (tmp_path / "eng.train").touch()
    (tmp_path / "eng.testa").touch()
    runner.Runner(one, str(tmp_path / "sweep"), inputs).results.add("small", 0, "colors", {"f1": 0.5})
    command = ("sweep", f"--experiment={tmp_path / 'tags.py'}", f"--workdir={tmp_path / 'sweep'}")
    assert cli.main([*command, "--table"]) == 0
    assert "| small | 1 | 0.5000 |" in capsys.readouterr().out


def test_the_arm_with_the_smallest_loss_is_the_best_one(tmp_path):
    """By default, the metric of held-out records is their loss."""
    one = Experiment(
        "Sizes",
        [Arm(name, Pretraining(tiny, "rows")) for name in ("small", "large")],
        [HeldOut("held out", "rows")],
        Budget(steps=3),
        vocabulary=(),
        records={"rows": ()},
        comparisons=[Comparison("GLUE", {"small": 75.0, "large": 80.0}, ["held out"])],
    )
    work = runner.Runner(one, str(tmp_path), runner.Inputs({"rows": "records"}))
    for seed in range(3):
        for arm, loss in (("small", 5.0), ("large", 4.0)):
            scores = {"mlm_loss": loss + seed / 10, "mlm_accuracy": 0.5}
            work.results.add(arm, seed, "held out", scores)
    row = "| GLUE | large > small | large > small | 1 as published, 0 reversed, 0 not significant |"
    assert row in report.write(work)


def test_a_mean_has_the_deviation_of_its_runs():
    assert report.mean([]) == "" and report.mean([0.5]) == "0.5000"
    assert report.mean([0.2, 0.4, 0.9]) == "0.5000 ± 0.3606"


def test_the_commands_that_are_shown_can_be_copied(monkeypatch, capsys):
    monkeypatch.setattr(cli, "main", len)
    assert sweep_command._command("data", "--input=a b/*") == 2
    assert capsys.readouterr().out == "$ bert-jax data '--input=a b/*'\n"
