"""`bert_jax.finetune` and `bert_jax.pretrain`: rows from memory, fields by keyword, resume."""

import json

import huggingface_hub
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support import fine_tuned, hub_folders, processes, together

import bert_jax
from bert_jax import cli, hub, library
from bert_jax.convert import conversion
from bert_jax.errors import UserError

ROWS = [{"review": f"the {word} is big", "animal": word} for word in ("cat", "dog") * 8]
FIELDS = dict(
    text_a="review", label="animal", max_seq_length=16, batch_size=16, epochs=2,
    **{"model.hidden_dropout_prob": 0.0, "model.attention_probs_dropout_prob": 0.0},
)  # fmt: skip


@pytest.mark.long
def test_rows_from_memory_train_as_those_of_a_file(tmp_path, pretrained):
    given = {"rows": ROWS, "table": pa.Table.from_pylist(ROWS), "file": tmp_path / "rows.jsonl"}
    given["file"].write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    histories = {}
    fields = FIELDS | {"init_from": str(pretrained), "log": lambda line: None}
    for name, rows in given.items():
        workdir = tmp_path / name
        run = bert_jax.finetune("finetune/classification", workdir, train=rows, eval=rows, **fields)
        histories[name] = [row["loss"] for row in run.history if row["kind"] == "train"]
        assert run.scores["accuracy"] >= 0.5 and len(run.predictor().predict_rows(["the cat"])) == 1
    assert len(set(map(tuple, histories.values()))) == 1
    again = bert_jax.finetune("finetune/classification", tmp_path / "rows", train=ROWS, eval=ROWS, **fields)
    assert again.scores == run.scores and len(again.history) == len(run.history)


def test_rows_may_lack_a_column_that_later_ones_have(tmp_path):
    path = library._file_of([{"a": "x"}, {"a": "y", "b": 1}], str(tmp_path / "rows.parquet"))
    assert parquet.read_table(path).to_pylist() == [{"a": "x", "b": None}, {"a": "y", "b": 1}]


@pytest.mark.parametrize("fields", [{"learning_rat": 1.0}, {"every": 1}, {"batch_size": "many"}])
def test_a_wrong_field_is_named(tmp_path, fields):
    with pytest.raises((UserError, TypeError), match=next(iter(fields))):
        bert_jax.finetune("finetune/classification", tmp_path / "run", train=ROWS, **fields)


def test_the_work_directory_is_needed():
    with pytest.raises(UserError, match="workdir"):
        bert_jax.finetune("finetune/classification", train=ROWS)


@pytest.fixture
def served(tmp_path, pretrained, monkeypatch):
    """A hub with a model and Parquet files with class names."""
    model, data = tmp_path / "hub" / "org" / "tiny", tmp_path / "hub" / "datasets" / "org" / "animals"
    (data / "data").mkdir(parents=True)
    assert cli.main(["convert", f"--input={pretrained}", f"--output={model}", "--to=huggingface"]) == 0
    names = ("cat", "dog")
    features = {"animal": {"names": list(names), "_type": "ClassLabel"}}
    rows = [row | {"animal": names.index(row["animal"])} for row in ROWS]
    table = pa.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    for split in ("train", "validation"):
        parquet.write_table(table, data / "data" / f"{split}-00000-of-00001.parquet")
    yield hub_folders.use(tmp_path / "hub", tmp_path / "cache", monkeypatch)
    hub._snapshot.cache_clear()


@pytest.mark.long
def test_a_model_and_a_data_set_by_their_names_and_back(tmp_path, served, capsys):
    commit = served.commit(served.root / "org" / "tiny")
    fields = FIELDS | {"init_from": "org/tiny", "train": "hf:org/animals", "eval": "hf:org/animals"}
    run = bert_jax.finetune("finetune/classification", tmp_path / "run", **fields)
    assert list(run.predictor().task.labels) == ["cat", "dog"]
    assert set(run.scores) == {"accuracy", "f1_macro"}
    assert json.loads((tmp_path / "run" / "config.json").read_text())["init_from_commit"] == commit

    # The run resumes, and keeps its commit, although the model has another one now.
    (served.root / "org" / "tiny" / "new.txt").write_text("new")
    hub._snapshot.cache_clear()
    assert bert_jax.finetune("finetune/classification", tmp_path / "run", **fields) == run

    assert run.push_to("org/pushed", license="mit").endswith("org/pushed")
    card = huggingface_hub.ModelCard.load(served.root / "org" / "pushed" / "README.md")
    assert card.data.base_model == "org/tiny" and f"| started from | org/tiny@{commit} |" in card.text
    assert card.data.datasets == ["org/animals"] and card.data.license == "mit"
    found = {each.metric_type: each.metric_value for each in card.data.eval_results}
    assert found == run.scores and set(card.data.metrics) == set(found)
    assert card.data.eval_results[0].dataset_type == "org/animals"
    assert card.data.eval_results[0].task_type == "text-classification"
    assert "at most 16 tokens" in card.text
    loaded = bert_jax.load("org/pushed")
    assert loaded.labels == ("cat", "dog")
    np.testing.assert_array_equal(
        loaded.encode(["the cat"]).pooled, bert_jax.load(run.workdir).encode(["the cat"]).pooled
    )


@pytest.mark.long
def test_the_commands_push(tmp_path, served, pretrained, vocabulary, files, capsys):
    corpus, records = served.root / "datasets" / "org" / "corpus" / "data", tmp_path / "records"
    corpus.mkdir(parents=True)
    texts = [f"the {color} cat is big. the dog is small." for color in ("red", "blue") * 40]
    parquet.write_table(pa.table({"text": texts}), corpus / "train-0.parquet")
    built = ["data", "--input=hf:org/corpus", f"--vocab={vocabulary}", f"--output={records}"]
    assert cli.main([*built, "--max_seq_length=32", "--nsp=none", "--eval_fraction=0"]) == 0
    short = ("--config.epochs=1", "--config.max_seq_length=16")
    tuned = fine_tuned.command(files, tmp_path / "finetune", pretrained, *short, label="color")
    trained = processes.command(tmp_path / "pretrain", records, steps=6)
    converted = ["convert", f"--input={pretrained}", f"--output={tmp_path / 'convert'}", "--to=huggingface"]
    assert processes.run([*converted, "--push_to=none"])[0] == 2  # without other imports of the hub's library
    for command in (tuned, trained, converted):
        name = f"org/{command[0]}"
        assert cli.main([*command, "--push_to=none"]) == 2 and not (tmp_path / command[0]).exists()
        assert cli.main([*command, f"--push_to={name}"]) == 0
        assert f"pushed to {served.url}/{name}" in capsys.readouterr().out
        card = huggingface_hub.ModelCard.load(served.root / name / "README.md")
        assert f"bert-jax {command[0]} --" in card.text and "--push_to" not in card.text
        assert f'from_pretrained("{name}")' in card.text
        assert card.data.datasets == (["org/corpus"] if command is trained else None)
        bert_jax.load(name)


@pytest.mark.long
def test_a_run_whose_push_failed_pushes_again(tmp_path, served, pretrained, files, capsys, monkeypatch):
    short = ("--config.epochs=1", "--config.max_seq_length=16", "--push_to=org/name")
    command = fine_tuned.command(files, tmp_path / "run", pretrained, *short, label="color")
    with monkeypatch.context() as patched:
        patched.setattr(served, "upload_folder", lambda: None)  # raises a TypeError
        assert cli.main(command) == 2
    captured = capsys.readouterr()
    assert "saved in" in captured.out and captured.err.splitlines()[-1].count("push_to=org/name") == 1
    best = (tmp_path / "run" / "best.json").read_text()
    assert cli.main(command) == 0 and (tmp_path / "run" / "best.json").read_text() == best
    assert (served.root / "org" / "name" / "model.safetensors").exists()


def test_several_processes_push_once(served, pretrained, monkeypatch):
    def push():
        return conversion.push_run(str(pretrained), "org/several", log=lambda line: None)

    first, second = together.run(monkeypatch, push, push)
    assert first == second == f"{served.url}/org/several"
    assert served.created == ["org/several"]
