"""Data sets by their names, in the layouts that they have on the hub."""

import json
import shutil

import pyarrow
import pytest
from pyarrow import parquet
from support import hub_folders

from bert_jax import cli, hub
from bert_jax.inference import text_files
from bert_jax.tasks import fields, inferred, registry, setup, table

CONFIG = """- config_name: {config}
  data_files:
  - {{split: train, path: {config}/train-*}}
  - {{split: {split}, path: {config}/{split}-*}}
"""
ANSWERS = {"text": ["Bonn"], "answer_start": [6]}
CHOICES = {f"ending{n}": [f"ends {n}", f"goes {n}"] for n in range(4)}


def classes(*names, inside=False):
    feature = {"names": names, "_type": "ClassLabel"}
    return {"feature": feature, "_type": "Sequence"} if inside else feature


SETS = {  # repository: (folder and name of its files, with the split; rows; features with classes)
    "nyu-mll/glue": (
        "mrpc/{}-0.parquet",
        {"sentence1": ["a b", "c"], "sentence2": ["a", "d"], "label": [1, 0], "idx": [7, 8]},
        {"label": classes("not_equivalent", "equivalent")},
    ),
    "rajpurkar/squad": (
        "plain_text/{}-0.parquet",
        {
            "id": ["q", "r"],
            "context": ["It is Bonn."] * 2,
            "question": ["Where?"] * 2,
            "answers": [ANSWERS] * 2,
        },
        {},
    ),
    "allenai/swag": (
        "regular/{}-0.parquet",
        {"sent1": ["a", "b"], "sent2": ["c", "d"], **CHOICES, "label": [2, 0]},
        {"label": classes(*"0123")},
    ),
    "eriktks/conll2003@parquet": (
        "conll2003/{}/0000.parquet",
        {"id": ["0", "1"], "tokens": [["In", "Bonn"], ["Yes"]], "ner_tags": [[0, 1], [0]]},
        {"ner_tags": classes("O", "B-LOC", inside=True)},
    ),
    "stanfordnlp/imdb": (
        "plain_text/{}-0.parquet",
        {"text": ["good", "bad"], "label": [1, 0]},
        {"label": classes("neg", "pos")},
    ),
    "user/imdb_tested": ("data/{}-0.parquet", {"text": ["good", "bad"], "label": [1, 0]}, {}),
    "facebook/xnli": (
        "en/{}-0.parquet",
        {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [1, 0]},
        {"label": classes("entailment", "neutral", "contradiction")},
    ),
}
LANGUAGES = registry.get("xnli").hub_configs


@pytest.fixture
def served(tmp_path, monkeypatch):
    root = tmp_path / "hub"
    for name, (file, columns, kinds) in SETS.items():
        table = pyarrow.table(columns)
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": kinds}})})
        evaluation = "test" if "imdb" in name else "validation"
        for split in ("train", evaluation):
            path = root / "datasets" / name / file.format(split)
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(table, path)
        config = file.partition("/")[0]
        configs = LANGUAGES if "xnli" in name else [config]
        for other in configs[1:]:
            shutil.copytree(root / "datasets" / name / config, root / "datasets" / name / other)
        described = "".join(CONFIG.format(config=config, split=evaluation) for config in configs)
        (root / "datasets" / name / "README.md").write_text(f"---\nconfigs:\n{described}---\n")
    (root / "datasets" / "eriktks" / "conll2003").mkdir()
    yield hub_folders.use(root, tmp_path / "cache", monkeypatch)
    hub._snapshot.cache_clear()


@pytest.mark.parametrize(
    "task, name, values",
    [
        ("mrpc", "", {"labels": [1, 0], "ids": ["7", "8"], "texts_b": ["a", "d"]}),
        ("squad", "", {"starts": [6, 6], "answers": [["Bonn"]] * 2}),
        ("swag", "", {"labels": [2, 0], "texts_b": ["c", "d"]}),
        ("conll", "", {"tags": [["O", "B-LOC"], ["O"]], "words": [["In", "Bonn"], ["Yes"]]}),
        ("tagging", "hf:eriktks/conll2003", {"tags": [["O", "B-LOC"], ["O"]]}),
        ("classification", "imdb", {"texts_a": ["good", "bad"], "labels": [1, 0]}),
        ("xnli", "", {"texts_b": ["c", "d"], "labels": [2, 1]}),
    ],
)
def test_a_task_reads_the_data_set_of_its_name(served, vocabulary, task, name, values):
    config = fields.default_config("tiny", task)
    config.vocab, config.data.train = str(vocabulary), name
    lines = []
    config = fields.finetuning(setup.with_named_data(config, lines.append))
    assert (config.data_dir or config.data.eval).startswith("hf:") and "license" in lines[0]
    task, training = setup.from_training_file(config)
    dev = task.read(setup.split_file(config, task.spec, "dev"))
    for examples in (training, dev.first(2)):
        assert {field: getattr(examples, field) for field in values} == values
    if task.spec.hub_configs:
        assert dev.languages == [each for each in LANGUAGES for _ in "ab"]
        assert task.read_unlabeled(dev.path).texts_a == dev.texts_a


def test_the_columns_of_other_data_sets_are_inferred_and_embedded(served):
    found = inferred.infer("hf:nyu-mll/glue:mrpc")
    assert found.fields == {"data.text_a": "sentence1", "data.text_b": "sentence2", "data.label": "label"}
    assert list(text_files.read_texts("hf:stanfordnlp/imdb")) == ["good", "bad"]
    pairs = table.read_examples("hf:nyu-mll/glue:mrpc", table.Columns("sentence1", "sentence2"))
    assert pairs.texts_b == ["a", "d"]


@pytest.mark.parametrize(
    "name, evaluated",
    [("nyu-mll/glue:mrpc", True), ("user/imdb_tested", False), ("rajpurkar/squad@main", True)],
)
def test_a_data_set_is_evaluated_on_its_validation_split(served, name, evaluated):
    config = fields.default_config("tiny", "squad" if "squad" in name else "classification")
    config.data.train = f"hf:{name}"
    lines = []
    assert setup.with_named_data(config, lines.append).data.eval == (f"hf:{name}" if evaluated else "")
    assert any(name in line for line in lines) == evaluated


@pytest.mark.long
def test_two_seeds_of_a_data_set_without_a_config(served, tmp_path, pretrained, capsys):
    command = ["finetune", f"--model={pretrained}", "--train=imdb", f"--workdir={tmp_path}/run", "--seeds=2"]
    assert cli.main([*command, "--config.epochs=1", "--config.max_seq_length=8"]) == 0
    assert capsys.readouterr().out.startswith("task: classification of hf:stanfordnlp/imdb (--config=")
    assert (tmp_path / "run" / "summary.json").exists()


def test_files_of_the_user_are_preferred(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imdb").write_text("")
    assert hub.data_set("imdb") is None and hub.data_set("mrpc").source == "hf:nyu-mll/glue"
    config = fields.default_config(task="mrpc")
    config.data_dir = "glue"
    assert setup.with_named_data(config, print) is config
