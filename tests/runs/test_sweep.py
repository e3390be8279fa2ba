"""Experiments: variants and measures, budgets, the settings of results, and installed experiments."""

import dataclasses
import json

import pytest

from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.runs import sweep
from bert_jax.runs.sweep import Experiment, Finetuning, Variant
from bert_jax.settings import config_files, defaults, pretrain_config
from bert_jax.tasks import fields

pytestmark = pytest.mark.usefixtures("quick_compilation")

FILE = """
from bert_jax.settings import defaults
from bert_jax.runs.sweep import *

def config(batch_size):
    def get(run):
        c = defaults.pretrain("tiny")
        c.model.update(dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64))
        c.model.max_position_embeddings = 32
        c.batch_size, c.optimizer.warmup_steps = batch_size, max(1, run.steps // 10)
        return c
    return get

def get_experiment(words="120"):
    fields = {"data.train": TRAIN, "data.eval": DEV, "data.text_a": "text", "data.label": "color"}
    fields |= {"max_seq_length": 16, "epochs": 1.0}
    return Experiment(
        "Small against large batches",
        variants=[
            Variant("small", config(8), "rows"),
            Variant("large", config(8), "rows", {"batch_size": 16}, share=0.5),
            Variant("from scratch", start="small", tune={"colors": {"from_scratch": True}}),
        ],
        measures=[Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
        budget="steps=4",
        seeds=1,
        vocabulary=(f"--size={words}",),
        records={"rows": ("--max_seq_length=32", "--nsp=none", "--eval_fraction=0.2")},
        published="The paper has other figures.",
    )
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, files):
    """A folder with the file of an experiment and a text for it."""
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
def test_every_variant_is_trained_and_evaluated_once_and_seeds_are_added(run, tmp_path):
    code, shown, error = run()
    assert code == 0, error
    rows = json.loads((tmp_path / "sweep" / "results.json").read_text())["results"]
    assert [(row["variant"], row["measure"]) for row in rows] == [
        *(("small", "pretraining"), ("small", "colors")),
        *(("large", "pretraining"), ("large", "colors")),
        ("from scratch", "colors"),
    ]
    spent = {row["variant"]: row["scores"] for row in rows if row["measure"] == "pretraining"}
    assert (spent["small"]["steps"], spent["large"]["steps"]) == (4, 2)
    assert spent["small"]["tokens"] == pytest.approx(spent["large"]["tokens"])
    folders = [tmp_path / "sweep" / name / "seed-0" / "colors" for name in ("small", "from-scratch")]
    assert [(path / "initialized.json").exists() for path in folders] == [True, False]
    assert not (folders[0] / "checkpoints").exists()
    table = (tmp_path / "sweep" / "README.md").read_text()
    assert table in shown and "| small | 1 | 4 | " in table and "The paper has other figures." in table

    code, shown, _ = run("--seeds=2", "--variants=small")
    assert code == 0 and "seed 0" not in shown
    more = json.loads((tmp_path / "sweep" / "results.json").read_text())["results"]
    assert more[:5] == rows and [(row["variant"], row["seed"]) for row in more[5:]] == [("small", 1)] * 2
    assert "±" in (tmp_path / "sweep" / "README.md").read_text()
    code, _, error = run("--budget=steps=9")
    assert code == 2 and "small" in error


@pytest.mark.slow
def test_a_budget_of_seconds_is_timed_once_and_becomes_steps(run, tmp_path):
    for _ in range(2):
        code, _, error = run("--budget=seconds=1", "--variants=small")
        assert code == 0, error
        rows = json.loads((tmp_path / "sweep" / "results.json").read_text())["results"]
        assert [row["measure"] for row in rows] == ["timing", "pretraining", "colors"]
    step, steps = rows[0]["scores"]["seconds_per_step"], rows[1]["scores"]["steps"]
    assert steps == max(1, int(1 / step))


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
def make(files, tmp_path, monkeypatch):
    """Makes a sweep of two variants whose training returns scores immediately."""
    monkeypatch.setattr(sweep.pretrain, "pretrain", lambda *args, **options: None)
    monkeypatch.setattr(sweep, "spent", lambda directory: (1.0, 9.0))
    monkeypatch.setattr(sweep.finetune, "finetune", lambda *args, **options: {"scores": {"accuracy": 0.5}})

    def make(epochs=1.0, tune=(), train="train.csv", seeds=1, budget="steps=3", records="a", **changes):
        manifest = {"fingerprint": records, "splits": {"train": {"rows": 10, "tokens": 200}}}
        monkeypatch.setattr(sweep.manifests, "read", lambda directory: manifest)
        fields = {"data.train": str(files / train), "data.eval": str(files / "dev.csv"), "epochs": epochs}
        fields |= {"data.text_a": "text", "data.label": "color"}
        experiment = Experiment(
            "Settings",
            [
                Variant("one", config(**changes), "rows"),
                Variant("two", start="one", tune={"colors": dict(tune)}),
            ],
            [Finetuning("colors", "finetune/classification", "", ("accuracy",), fields)],
            budget,
            seeds=seeds,
            records={"rows": ()},
            vocabulary=(),
        )
        return sweep.Sweep(experiment, str(tmp_path), {"rows": str(tmp_path / "records")})

    return make


@pytest.mark.parametrize(
    "change, message",
    [
        ({"batch_size": 16}, "'one', pretraining"),
        ({"epochs": 2.0}, "'one', colors"),
        ({"tune": {"from_scratch": True}}, "'two', colors"),
        ({"train": "dev.csv"}, "'one', colors"),
        ({"records": "b"}, "'one', pretraining"),
    ],
)
def test_results_with_other_settings_are_not_mixed(make, change, message):
    make().run()
    with pytest.raises(UserError, match=message):
        make(**change, seeds=2).run()
    work = make(log_every=6, seeds=2)
    work.run()
    assert [(row["variant"], row["seed"]) for row in work.results[3:]] == [("one", 1), ("one", 1), ("two", 1)]


def test_two_sweeps_of_one_directory_do_not_run_at_a_time_and_lose_no_result(make, monkeypatch):
    first, second = make(), make()

    def spent(directory):
        with pytest.raises(UserError, match="in use by another run"):
            second.run()
        return 1.0, 9.0

    monkeypatch.setattr(sweep, "spent", spent)
    first.run(["one"])
    second.run(["two"])
    assert [row["variant"] for row in second.results] == ["one", "one", "two"]


def test_a_budget_of_tokens(make):
    work = make(budget="tokens=1000")
    work.run()
    assert work.scores("one", "pretraining")[0]["steps"] == 6  # of 8 rows of 20 tokens


INSTALLED = {
    name: sweep.load_experiment(name.partition("/")[2])
    for name in config_files.names()
    if name.startswith("experiments/")
}


@pytest.mark.parametrize("name", INSTALLED)
def test_every_variant_of_an_installed_experiment_has_a_valid_config(name, pretrained):
    experiment = INSTALLED[name]
    for variant in experiment.variants:
        if variant.config:
            run = sweep.Run(1000, str(pretrained), lambda name: name)
            model = pretrain_config.pretraining(variant.pretraining(run)).model
            dataclasses.replace(model, vocab_size=8192).encoder()
        for measure in experiment.measures_of(variant):
            if isinstance(measure, Finetuning):
                given = measure.configured(variant, init_from="model", data_dir="data")
                fields.check(given)
