"""Experiments: arms and measures, budgets, the settings of results, and the installed experiments."""

import dataclasses
import json

import pytest
from support.pretrained import write

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.runs import sweep
from bert_jax.runs.sweep import Arm, Budget, Comparison, Experiment, Finetuning, HeldOut, Inputs, Pretraining
from bert_jax.settings import config_files, defaults, pretrain_config
from bert_jax.tasks import fields
from bert_jax.workdir.lock import Lock

pytestmark = pytest.mark.usefixtures("quick_compilation")

FILE = """
from bert_jax.settings import defaults
from bert_jax.runs.sweep import *

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
def run(experiment, tmp_path, capsys):
    """Runs the command; returns (exit code, stdout, stderr)."""

    def run(*more, workdir=tmp_path / "sweep"):
        flags = (f"--experiment={experiment / 'batches.py'}", f"--workdir={workdir}")
        code = cli.main(["sweep", *flags, f"--input={experiment / 'text.txt'}", *more])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.slow
def test_every_arm_is_trained_and_judged_once_and_seeds_are_added(run, tmp_path):
    code, shown, error = run()
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
    folders = [tmp_path / "sweep" / arm / "seed-0" / "colors" for arm in ("small", "from-scratch")]
    assert [(path / "initialized.json").exists() for path in folders] == [True, False]
    assert not (folders[0] / "checkpoints").exists()
    table = (tmp_path / "sweep" / "README.md").read_text()
    assert table in shown and "| small | 4 | " in table and "The paper has other figures." in table
    assert {"curves.png", "scores.png"} <= {path.name for path in (tmp_path / "sweep").iterdir()}

    code, shown, _ = run("--seeds=2", "--arms=small")
    assert code == 0 and "seed 0" not in shown
    rows = json.loads((tmp_path / "sweep" / "results.json").read_text())
    assert rows[:5] == found and [(row["arm"], row["seed"]) for row in rows[5:]] == [("small", 1)] * 2
    table = (tmp_path / "sweep" / "README.md").read_text()
    assert "±" in table and "0 reversed, 1 not significant |" in table
    code, shown, error = run("--seeds=2", "--table")
    assert code == 0 and "| small | 2 | " in shown, error
    code, _, error = run("--steps=9")
    assert code == 2 and "holds an experiment with the budget" in error


@pytest.mark.slow
def test_a_budget_of_seconds_is_timed_once_and_becomes_steps(run, tmp_path):
    flags = ("--seconds=0.5", "--arms=small", "--train_rows=10")
    code, _, error = run(*flags)
    assert code == 0, error
    times = json.loads((tmp_path / "sweep" / "step_times.json").read_text())
    assert list(times) == ["small", "large"] and list(times["small"]) == ["8 rows"]
    steps = json.loads((tmp_path / "sweep" / "results.json").read_text())[0]["scores"]["steps"]
    step = times["small"]["8 rows"]
    assert steps == 1 or steps * step <= 0.5 < (steps + 1) * step
    config = json.loads((tmp_path / "sweep" / "small" / "seed-0" / "colors" / "config.json").read_text())
    assert config["config"]["train_rows"] == 10
    written = (tmp_path / "sweep" / "step_times.json").stat().st_mtime_ns
    assert run(*flags)[0] == 0
    assert (tmp_path / "sweep" / "step_times.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("old, new", [("dev.csv", "dev2.csv"), ("accuracy", "f1")])
def test_mistakes_of_fine_tunings_are_found_before_the_first_run(experiment, run, tmp_path, old, new):
    (tmp_path / "wrong.py").write_text((experiment / "batches.py").read_text().replace(old, new))
    code, _, error = run(f"--experiment={tmp_path / 'wrong.py'}")
    assert code == 2 and new in error
    assert not (tmp_path / "sweep" / "records").exists()


def config(batch_size=8, **changes):
    def get(run):
        c = defaults.pretrain("tiny")
        c.update(batch_size=batch_size, **changes)
        return c

    return get


@pytest.fixture
def judged(files, tmp_path, monkeypatch):
    """Makes a sweep of two arms whose trainings give scores at once."""
    monkeypatch.setattr(sweep.pretrain, "pretrain", lambda *args, **options: None)
    monkeypatch.setattr(sweep, "spent", lambda directory: (1.0, 9.0))
    monkeypatch.setattr(sweep.finetune, "finetune", lambda config, directory: {"scores": {"accuracy": 0.5}})

    def make(batch_size=8, log_every=5, epochs=1.0, tune=(), train="train.csv", seeds=1, budget=None):
        fields = {"data.train": str(files / train), "data.eval": str(files / "dev.csv"), "epochs": epochs}
        fields |= {"data.text_a": "text", "data.label": "color"}
        one = Experiment(
            "Settings",
            [
                Arm("one", Pretraining(config(batch_size, log_every=log_every), "rows")),
                Arm("two", start="one", tune={"colors": dict(tune)}),
            ],
            [Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
            budget or Budget(steps=3),
            seeds=seeds,
            records={"rows": ()},
            vocabulary=(),
        )
        return sweep.Sweep(one, str(tmp_path), Inputs({"rows": str(tmp_path / "records")}))

    return make


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch_size": 16}, "arm 'one', pretraining, with batch_size=8, and it is 16 now"),
        ({"epochs": 2.0}, "arm 'one', colors, with epochs=1.0, and it is 2.0 now; undo"),
        ({"tune": {"from_scratch": True}}, "arm 'two', colors, with from_scratch=False"),
        ({"train": "dev.csv"}, "arm 'one', colors, with data.train="),
    ],
)
def test_results_with_other_settings_are_not_mixed(judged, change, message):
    judged().run()
    with pytest.raises(UserError, match=message):
        judged(**change, seeds=2).run()
    more = judged(log_every=6, seeds=2)
    more.run()
    assert [(row["arm"], row["seed"]) for row in more.results[3:]] == [("one", 1), ("one", 1), ("two", 1)]


def test_results_with_other_records_are_not_mixed(judged, tmp_path, monkeypatch):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "manifest.json").touch()
    digests = iter(["a", "a", "b"])
    monkeypatch.setattr(sweep.manifests, "read", lambda directory: {"fingerprint": next(digests)})
    judged().run()
    judged().run()
    with pytest.raises(UserError, match=r"arm 'one', pretraining, with files.records='a', and it is 'b' now"):
        judged(seeds=2).run()


def test_two_sweeps_of_one_directory_do_not_run_at_a_time_and_lose_no_result(judged, tmp_path):
    other = Lock(tmp_path)
    other.acquire()
    with pytest.raises(UserError, match="in use by another run"):
        judged().run()
    other.release()
    first, second = judged(), judged()
    first.run(["one"])
    second.run(["two"])
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["arm"] for row in rows] == ["one", "one", "two"]
    first.run()
    assert first.results == rows


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([1.0, 1.1, 0.9], [2.0, 2.1, 1.9], True),
        ([1.0, 1.1, 0.9], [1.0, 1.2, 1.1], False),
        ([1.0], [9.0], False),  # one run says nothing about others
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [1.1, 1.1], True),
        ([0.0, 0.1, 0.2], [0.2, 0.3, 0.5], False),  # Student's test finds a difference
    ],
)
def test_whether_two_arms_differ(a, b, expected):
    assert sweep.differ(a, b) is sweep.differ(b, a) is expected


def test_the_arm_with_the_smallest_loss_is_the_best_one(tmp_path):
    """By default, the metric of held-out records is their loss."""
    one = Experiment(
        "Sizes",
        [Arm(name, Pretraining(config(), "rows")) for name in ("small", "large")],
        [HeldOut("held out", "rows")],
        Budget(steps=3),
        vocabulary=(),
        records={"rows": ()},
        comparisons=[Comparison("GLUE", {"small": 75.0, "large": 80.0}, ["held out"])],
    )
    work = sweep.Sweep(one, str(tmp_path), Inputs({"rows": "records"}))
    for seed in range(3):
        for arm, loss in (("small", 5.0), ("large", 4.0)):
            scores = {"mlm_loss": loss + seed / 10, "mlm_accuracy": 0.5}
            work.results.append({"arm": arm, "seed": seed, "measure": "held out", "scores": scores})
    row = "| GLUE | large > small | large > small | 1 as published, 0 reversed, 0 not significant |"
    assert row in sweep.write_report(work)


INSTALLED = {
    name: sweep.load_experiment(name.partition("/")[2])
    for name in config_files.names()
    if name.startswith("experiments/")
}
PRETRAINED = [name for name, experiment in INSTALLED.items() if experiment.budget]


@pytest.mark.parametrize("name", INSTALLED)
def test_every_arm_of_an_installed_experiment_has_a_valid_config(name, pretrained):
    experiment = INSTALLED[name]
    for arm in experiment.arms:
        if arm.pretrain:
            run = sweep.Run(1000, 0, str(pretrained), lambda name: name)
            pretrain_config.pretraining(arm.pretrain.config(run)).model.replace(vocab_size=8192).encoder()
        for measure in experiment.measures_of(arm):
            if isinstance(measure, Finetuning):
                given = config_files.load(measure.config, "finetune")
                values = (
                    {"init_from": "model", "data_dir": "data"} | measure.fields | arm.fields(measure.name)
                )
                for field, value in values.items():
                    fields.lookup(given, field)
                    fields.assign(given, field, value)
                fields.check(given)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_every_arm_of_an_installed_experiment_is_trained_for_a_few_steps(
    name, pretrained, vocabulary, tmp_path
):
    experiment, text, records = INSTALLED[name], tmp_path / "text.txt", {}
    lines = (f"the {color} cat is a big dog .\ntwo small birds .\n\n" for color in ("red", "blue") * 400)
    text.write_text("".join(lines))
    for kind, flags in experiment.records.items():
        records[kind] = str(tmp_path / kind)
        command = ["data", f"--input={text}", f"--vocab={vocabulary}", f"--output={records[kind]}"]
        assert cli.main([*command, "--max_seq_length=32", *flags]) == 0
    small = dataclasses.replace(experiment, budget=Budget(steps=8), seeds=1).with_measures(
        [one for one in experiment.measures if isinstance(one, HeldOut)]
    )
    inputs = Inputs(records, checkpoint=str(pretrained) if experiment.needs_checkpoint else "")
    work = sweep.Sweep(small, str(tmp_path / "sweep"), inputs)
    work.run()
    trained = [arm.name for arm in experiment.arms if arm.pretrain]
    assert [row["arm"] for row in work.results if row["measure"] == sweep.PRETRAINING] == trained
    table = sweep.write_report(work)
    assert all(f"| {arm} |" in table for arm in trained)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*INSTALLED} - {*PRETRAINED}))
def test_every_arm_of_an_experiment_without_pretraining_is_fine_tuned(name, vocabulary, tmp_path):
    pairs = "".join(f"{i % 2}\t1\t2\tthe cat\t{('the dog', 'the cat')[i % 2]}\n" for i in range(8))
    pairs = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + pairs
    words = "the x O\ncat x I-MISC\nsees x O\n\n" * 8
    (tmp_path / "MRPC").mkdir()
    for file in ("MRPC/train.tsv", "MRPC/dev.tsv", "eng.train", "eng.testa"):
        (tmp_path / file).write_text(words if file.startswith("eng") else pairs)
    checkpoint = write(tmp_path / "model", vocabulary, num_hidden_layers=6)
    (measure,) = (one for one in INSTALLED[name].measures if one.name in ("MRPC", "CoNLL-2003"))
    small = {"epochs": 1.0, "batch_size": 8, "max_seq_length": 16}
    arms = []
    for arm in INSTALLED[name].arms:
        given = arm.fields(measure.name)
        narrow = {field: 8 for field in ("head_size", "encoder_size") if field in given}
        arms.append(dataclasses.replace(arm, tune={"*": {**given, **narrow, **small}}))
    experiment = dataclasses.replace(INSTALLED[name], arms=arms, seeds=1).with_measures([measure])
    inputs = Inputs(data={measure.data: str(tmp_path)}, checkpoint=str(checkpoint))
    work = sweep.Sweep(experiment, str(tmp_path / "sweep"), inputs)
    work.run()
    assert [row["arm"] for row in work.results] == [arm.name for arm in arms]
    assert all(0 <= row["scores"][measure.metrics[0]] <= 1 for row in work.results)
