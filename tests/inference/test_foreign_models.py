"""Folders that `convert` writes give the same predictions as the runs they come from."""

import json
import types

import jax
import numpy as np
import pytest
from support.fine_tuned import mistake
from support.task_runs import RUNS
from support.tiny_tasks import task_files  # noqa: F401

from bert_jax import cli, convert
from bert_jax.commands import serve
from bert_jax.errors import UserError
from bert_jax.inference import search
from bert_jax.inference.predictor import Predictor

QUIET = {"log": lambda line: None}
PAIRS = ["the red cat\ta dog", "a blue dog\tthe bird is small"]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, run_of):
    """folder_of(task) returns the directory of a run and its Hugging Face folder, both made once."""
    made = {}

    def folder(task):
        if task not in made:
            run, made[task] = run_of(task), tmp_path_factory.mktemp(task) / "out"
            assert cli.main(["convert", f"--input={run}", f"--output={made[task]}", "--to=huggingface"]) == 0
        return run_of(task), made[task]

    return folder


def check_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one == (pytest.approx(other, abs=2e-6) if isinstance(other, float) else other)


@pytest.mark.parametrize("task", [task for task in RUNS if task != "squad2"])
def test_a_folder_predicts_what_its_run_does(folder_of, task):
    rows = RUNS[task][1]
    run, folder = folder_of(task)
    expected = Predictor(run, **QUIET).predict_rows(rows)
    columns = {"choices": "x,y"} if task == "multiplechoice" else {}
    found = Predictor(folder, columns=columns, **QUIET).predict_rows(rows)
    if task == "reranking":  # a folder gives sentence-transformers' scores, a run gives logits
        expected = [{"prediction": 1 / (1 + np.exp(-one["prediction"]))} for one in expected]
    check_same(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("task", ["multilabel", "regression", "tagging", "multiplechoice", "squad"])
def test_a_file_is_scored_as_by_the_run(folder_of, task_files, tmp_path, capsys, task):  # noqa: F811
    run, folder = folder_of(task)
    capsys.readouterr()  # discards the output of the conversion
    rows = {
        "regression": "text\ttext_b\tlabel\nthe cat\ta dog\t1\na blue dog\tthe bird\t2\n",
        "multilabel": 'text\tlabel\nthe cat\t"b,é"\na blue dog\t\n',
    }
    path = task_files["squad2" if task == "squad" else task][0]
    if task in rows:
        path = tmp_path / "rows.tsv"
        path.write_text(rows[task])
    given = [f"--input={path}", "--json", "--dtype=float32"]
    columns = {"multiplechoice": ["--choices=x,y"]}.get(task, [])
    scores = []
    for model in (f"--workdir={run}", f"--model={folder}"):
        assert cli.main(["evaluate", model, *given, *(columns if "--model" in model else [])]) == 0
        scores.append(json.loads(capsys.readouterr().out)["scores"])
    check_same(*scores)


def test_texts_with_and_without_a_second_one(folder_of):
    model = Predictor(folder_of("classification")[1], **QUIET)
    pair = {"text_a": "the cat", "text_b": "a dog"}
    mixed = model.predict_rows(["the cat", "the cat\ta dog", pair, {"text": "the cat", "id": 3}])
    check_same(mixed[0]["probabilities"], mixed[3]["probabilities"])
    check_same(mixed[1], mixed[2])
    assert mixed[0] != mixed[1] and mixed[3]["id"] == "3"


def test_commands(folder_of, tmp_path, capsys):
    folder = folder_of("classification")[1]
    objects = [{"text_a": "the red cat", "label": "no"}, {"text_a": "a blue dog", "label": "yes"}]
    tables = {
        "a.csv": ("text,label\nthe red cat,no\na blue dog,yes\n", []),
        "b.tsv": ("words\tlabel\nthe red cat\t0\na blue dog\t1\n", ["--text=words"]),
        "c.jsonl": ("".join(json.dumps(row) + "\n" for row in objects), []),
        "d.csv": ("sentence,stars\nthe red cat,no\na blue dog,yes\n", []),
        "e.txt": ("the red cat\na blue dog\n", []),
    }
    expected = Predictor(folder, **QUIET).predict_rows(["the red cat", "a blue dog"])
    right = np.mean([one["prediction"] == label for one, label in zip(expected, ("no", "yes"), strict=True)])
    for name, (content, columns) in tables.items():
        (tmp_path / name).write_text(content)
        given, out = [f"--model={folder}", f"--input={tmp_path / name}", *columns], tmp_path / f"{name}.jsonl"
        assert cli.main(["predict", *given, f"--output={out}"]) == 0
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        check_same(rows, [{"id": str(number), **one} for number, one in enumerate(expected)])
        capsys.readouterr()
        if name != "e.txt":
            assert cli.main(["evaluate", *given, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["scores"]["accuracy"] == right


def test_a_cross_encoder_orders_documents_and_a_server_predicts(folder_of):
    folder = folder_of("reranking")[1]
    reranker = search.Reranker(Predictor(folder, columns={"text_b": "text_b"}, **QUIET), **QUIET)
    scores = [one["prediction"] for one in Predictor(folder, **QUIET).predict_rows(PAIRS)]
    found = reranker.scores([tuple(pair.split("\t")) for pair in PAIRS])
    np.testing.assert_allclose(found, scores, atol=1e-6)
    flags = types.SimpleNamespace(model=str(folder), workdir=None, dtype="float32", batch_size=4)
    assert [service.name for service in serve._services(flags)] == ["embed", "predict"]


def test_what_has_no_fine_tuned_head(folder_of, pretrained, tmp_path, capsys):
    folder = tmp_path / "folder"
    command = ["convert", f"--input={pretrained}", f"--output={folder}", "--to=huggingface"]
    assert cli.main(command) == 0
    given = ["--input=a.csv", f"--output={tmp_path / 'out.tsv'}"]
    assert "expected a fine-tuned model" in mistake(["predict", f"--model={folder}", *given], capsys)
    assert str(folder) in mistake(["predict", f"--workdir={folder}", *given], capsys)
    choices, classes = folder_of("multiplechoice")[1], folder_of("classification")[1]
    assert "--choices=" in mistake(["predict", f"--model={choices}", *given], capsys)
    assert "--step" in mistake(["predict", f"--model={classes}", "--step=3", *given], capsys)
    assert "one of" in mistake(["predict", f"--model={classes}", "--workdir=x", *given], capsys)


def test_outputs_without_names(folder_of):
    model = convert.load(folder_of("classification")[1], **QUIET)
    (record,) = Predictor(model.replace(labels=None), **QUIET).predict_rows(["the cat"])
    assert [*record["probabilities"]] == ["LABEL_0", "LABEL_1"]
    with pytest.raises(UserError, match="not 2 with Identity"):
        Predictor(model.replace(problem_type="regression"), **QUIET)
