"""What the model cards of a fine-tuning, of several, and of an export say."""

import json
import shlex

import pytest
from fine_tuned import make_run

from bert_jax import cli
from bert_jax.commands import finetune, run_flags
from bert_jax.convert import card, native

SCORES = [
    "## Held-out results",
    "",
    "| metric | value |",
    "|---|---|",
    "| matthews | 0.5123 |",
    "| accuracy | 0.8 |",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory, vocabulary):
    fields = dict(data_dir="glue", init_from="runs/mini", steps=30, epochs=2.0)
    directory = make_run(tmp_path_factory.mktemp("run"), vocabulary, "cola", ["0", "1"], fields)
    (directory / "best.json").write_text(json.dumps({"scores": {"matthews": 0.51234, "accuracy": 0.8}}))
    config = json.loads((directory / "config.json").read_text())
    config |= {"command_line": "bert-jax finetune --seed=1", "files": {"dev": "ab12"}}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_a_run(run):
    lines = card.of_run(str(run)).splitlines()
    assert lines[0] == "# cola, fine-tuned: BERT, 1 layers of 32" and "Labels: 0, 1." in lines
    rows = dict(line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and line != "| | |")
    expected = {"task": "cola", "data": "glue", "started from": "runs/mini", "steps": "30", "epochs": "2.0"}
    expected |= {"batch size": "16", "tokens a row": "16", "seed": "0", "dev file, SHA-256": "ab12"}
    assert expected.items() <= rows.items() and "evaluated on" not in rows
    assert lines[lines.index("```") + 1] == "bert-jax finetune --seed=1"
    start = lines.index(SCORES[0])
    assert lines[start : start + len(SCORES)] == SCORES


def test_an_export_has_the_same_scores(run):
    made = card.make(native.read(run), str(run), "bert-jax convert").splitlines()
    start = made.index(SCORES[0])
    assert made[start : start + len(SCORES)] == SCORES
    assert "bert-jax finetune --seed=1" in made and "bert-jax convert" in made


def test_several_runs(run):
    one = {"median": 0.5, "best": 0.61234, "worst": 0.4, "deviation": 0.1}
    setting = {"setting": "", "seeds": 3, "degenerate": 1, "scores": {"matthews": one}}
    text = card.of_repeats(str(run), [setting, setting | {"setting": "batch_size=8"}])
    assert "| - | matthews | 0.5 | 0.6123 | 0.4 | 0.1 | 3 | 1 |" in text and "| seed |" not in text
    assert "| batch_size=8 | matthews | 0.5 " in text and "| data | glue |" in text


def test_the_command_line_is_that_which_was_given():
    given = [
        "--config=finetune/glue:rte",
        "--config.data_dir=my glue",
        "--config.optimizer.name=adamw",
    ]
    given += ["--seeds=2", "--sweep=batch_size=16,32", "--sweep=epochs=2.0", "--workdir=run"]
    flags, _ = cli.parse_flags(finetune, "finetune", given)
    command, *found = shlex.split(run_flags.command_line("finetune", flags))[1:]
    assert command == "finetune" and sorted(found) == sorted(given)
