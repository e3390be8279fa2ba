"""What the model cards of a fine-tuning, of several, and of an export say."""

import json
import shutil

import huggingface_hub
import pytest
from support.fine_tuned import make_run

from bert_jax.convert import model_card
from bert_jax.convert.formats import huggingface, work_directory

SCORES = [
    "## Held-out results",
    "",
    "| metric | value |",
    "| --- | --- |",
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
    lines = model_card.of_run(str(run)).splitlines()
    assert lines[0] == "# cola, fine-tuned: BERT, 1 layer of 32" and "Labels: 0, 1." in lines
    rows = dict(
        line.strip("| ").split(" | ")
        for line in lines
        if line.startswith("| ") and "---" not in line and line.strip("| ")
    )
    expected = {"task": "cola", "data": "glue", "started from": "runs/mini", "steps": "30", "epochs": "2.0"}
    expected |= {"batch size": "16", "tokens per row": "16", "seed": "0", "dev file, SHA-256": "ab12"}
    assert expected.items() <= rows.items() and "evaluated on" not in rows
    assert lines[lines.index("```") + 1] == "bert-jax finetune --seed=1"
    start = lines.index(SCORES[0])
    assert lines[start : start + len(SCORES)] == SCORES


def test_the_header_has_what_the_hub_filters_by(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    config["config"] |= {"data_dir": "hf:nyu-mll/glue@v1", "init_from": "org/base@main"}
    config |= {"init_from_commit": "c0ffee", "origin": {"languages": ["de", "other texts"]}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    model = work_directory.FORMAT.read(tmp_path / "run")
    card = huggingface_hub.ModelCard(model_card.make(model, str(tmp_path / "run"), license="mit"))
    expected = {"base_model": "org/base", "datasets": ["nyu-mll/glue"], "language": ["de"], "license": "mit"}
    assert expected.items() <= card.data.to_dict().items()
    assert "| started from | org/base@c0ffee |" in card.text
    assert f"| weights of step | {model.source.rpartition('/')[2]} |" in card.text
    results = {each.metric_type: (each.dataset_type, each.metric_value) for each in card.data.eval_results}
    found = {"matthews_correlation": ("nyu-mll/glue", 0.51234), "accuracy": ("nyu-mll/glue", 0.8)}
    assert results == found and card.data.model_name == "run"


def test_a_published_command_has_neither_paths_of_the_machine_nor_secrets():
    command = (
        "bert-jax finetune --config=/home/ada/mine.py:x --workdir=/home/ada/run --config.data_dir=../ada/x "
        "--config.optimizer.learning_rate=5e-05 --grid=batch_size=16,32 --compare=/home/ada/a,/home/ada/b "
        "--grid=init_from=/home/ada/a,/home/ada/b "
        "--coordinator_address=10.0.0.1:1234 --process_id=3 --hub_token=hf_123 --batch_tokens=64 "
        "--config.init_ignore='encoder/layers/.*' --text='two words'"
    )
    assert model_card.public_command(command) == (
        "bert-jax finetune --config=mine.py:x --workdir=run --config.data_dir=x "
        "--config.optimizer.learning_rate=5e-05 --grid=batch_size=16,32 --compare=a,b --grid=init_from=a,b "
        "--hub_token=... --batch_tokens=64 '--config.init_ignore=encoder/layers/.*' '--text=two words'"
    )


@pytest.mark.parametrize(
    "task, labels, problem_type",
    [
        ("regression", None, "regression"),
        ("classification", ["bad", "good"], "single_label_classification"),
        ("multilabel", ["bad", "good", "new"], "multi_label_classification"),
        ("multilabel", ["bad"], "multi_label_classification"),
    ],
)
def test_labels_and_problem_type_of_an_export_survive_the_way_back(
    tmp_path, vocabulary, task, labels, problem_type
):
    run = make_run(tmp_path / "run", vocabulary, task, labels, text_a="text", label="label")
    model = work_directory.FORMAT.read(run)
    for folder in ("there", "again"):
        (tmp_path / folder).mkdir()
        huggingface.FORMAT.write(model, tmp_path / folder)
        config = json.loads((tmp_path / folder / "config.json").read_text())
        assert config["problem_type"] == problem_type
        if labels is None:
            assert config["num_labels"] == 1 and "id2label" not in config and "label2id" not in config
        else:
            assert config["id2label"] == {str(i): name for i, name in enumerate(labels)}
            assert config["label2id"] == {name: i for i, name in enumerate(labels)}
            assert "num_labels" not in config
        (tmp_path / f"{folder}-native").mkdir()
        work_directory.FORMAT.write(huggingface.FORMAT.read(tmp_path / folder), tmp_path / f"{folder}-native")
        model = work_directory.FORMAT.read(tmp_path / f"{folder}-native")
    assert model.labels == (tuple(labels) if labels else None) and model.problem_type == problem_type
