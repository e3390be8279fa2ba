"""The task of a file, as a run without a config infers it, and such a run."""

import json

import pyarrow
import pytest
from pyarrow import parquet
from support import fine_tuned

import bert_jax
from bert_jax import cli
from bert_jax.errors import UserError
from bert_jax.tasks.inferred import infer

CLASSES, TAGS = "finetune/classification", "finetune/tagging"
ANSWER = {"text": ["Bonn"], "answer_start": [6]}
QUESTION = {"question": "Where?", "context": "It is Bonn.", "answers": ANSWER}
SQUAD = [{"context": "It is Bonn.", "qas": [{"id": "1", "question": "Where?", "answers": []}]}]


def write(folder, name, content):
    path = folder / name
    if name.endswith(".parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    else:
        path.write_text(content)
    return str(path)


def column(values, name="label"):
    return f"text,{name}\n" + "".join(f"a b,{value}\n" for value in values)


TEXT, SCORE = "text_a=text label=label", "text_a=text label=score"


@pytest.mark.parametrize(
    "name, content, config, fields",
    [
        ("a.csv", column(["good", "bad"]), CLASSES, TEXT),
        ("a.csv", column([1, 2, 5], "stars"), CLASSES, "text_a=text label=stars"),
        ("a.csv", column([1, 2.5], "score"), "regression", SCORE),
        ("a.csv", column(range(21)), "regression", TEXT),
        ("a.csv", column([*range(77)] * 20), CLASSES, TEXT),
        (
            *("a.tsv", "premise\thypothesis\tlabel\na\tb\t0\nc\td\t1\n", CLASSES),
            "text_a=premise text_b=hypothesis label=label",
        ),
        ("a.tsv", 'text\tlabel\na\tx\n"b\ty\n', CLASSES, TEXT),
        ("a.jsonl", [{"text": "a", "score": ["x", "y"]}, {"text": "b", "score": []}], "multilabel", SCORE),
        (
            *("a.parquet", [{"tokens": ["In", "Bonn"], "ner_tags": ["O", "B-LOC"], "label": "x"}], TAGS),
            "text_a=tokens label=ner_tags",
        ),
        ("eng.train", "In O\nBonn B-LOC\n", TAGS, ""),
        ("a.jsonl", [QUESTION, QUESTION], "finetune/squad:v1", ""),
        ("a.parquet", [QUESTION, QUESTION | {"answers": {"text": []}}], "finetune/squad:v2", ""),
        ("a.json", json.dumps({"data": [{"paragraphs": SQUAD}]}, indent=1), "finetune/squad:v2", ""),
        ("a.json", json.dumps({"text": "a", "label": 1}), CLASSES, TEXT),
    ],
)
def test_the_task_and_the_columns_of_a_file(tmp_path, name, content, config, fields):
    found = infer(write(tmp_path, name, content))
    task = {} if "/" in config else {"task": config}
    assert found.config == (CLASSES if task else config)
    columns = (field.split("=") for field in fields.split())
    assert found.fields == {**task, **{f"data.{field}": column for field, column in columns}}
    assert f"--config={found.config}" in str(found)


def test_columns_that_are_named(tmp_path):
    path = write(tmp_path, "a.csv", "q,a,text,right\nx,y,z,yes\nx,y,z,no\n")
    found = infer(path, texts=["q", "a"], label="right")
    assert found[1:] == (CLASSES, {"data.text_a": "q", "data.text_b": "a", "data.label": "right"})


@pytest.mark.parametrize(
    "header, options, message",
    [
        ("text,review,label", {}, "--text=COLUMN.*'text', 'review', 'label'"),
        ("words_of_it,label", {}, "--text=COLUMN"),
        ("text,stars,score", {}, "--label=COLUMN"),
        ("text,label", {"label": "color"}, "--label=color matches none of the columns 'text', 'label'"),
    ],
)
def test_what_is_not_plain_is_asked_for(tmp_path, header, options, message):
    path = write(tmp_path, "a.csv", f"{header}\n{','.join('1' * len(header.split(',')))}\n")
    with pytest.raises(UserError, match=message):
        infer(path, **options)


def test_names_of_data_sets():
    assert infer("imdb")[1:] == (CLASSES, {})
    assert infer("mrpc").config == "finetune/glue:mrpc"


@pytest.mark.long
def test_a_run_without_a_config_and_its_resume(tmp_path, pretrained, capsys):
    content = "review,stars\n" + "".join(
        f"the cat is {'big' if i % 2 else 'small'},{i % 2}\n" for i in range(16)
    )
    path = write(tmp_path, "train.csv", content)
    short = [f"--model={pretrained}", f"--train={path}", f"--eval={path}", f"--workdir={tmp_path}/run"]
    command = ["finetune", *short, "--config.max_seq_length=16", *fine_tuned.NO_DROPOUT]
    assert cli.main(command) == 0
    assert capsys.readouterr().out.startswith(
        "task: classification, 2 labels (--config=finetune/classification --config.data.text_a"
    )
    best = json.loads((tmp_path / "run" / "best.json").read_text())

    long = [
        f"--config.{flag}" for flag in (f"init_from={pretrained}", f"data.train={path}", f"data.eval={path}")
    ]
    columns = ["--config=finetune/classification", "--text=review", "--config.data.label=stars"]
    for again in (command, [*command[:1], *columns, *long, *command[4:]]):
        assert cli.main(again) == 0
        assert "resum" in capsys.readouterr().out
    fields = {flag.removeprefix("--config.").split("=")[0]: 0.0 for flag in fine_tuned.NO_DROPOUT}
    files = dict(workdir=tmp_path / "run", train=path, eval=path, init_from=str(pretrained))
    run = bert_jax.finetune(**files, max_seq_length=16, **fields)
    assert (run.step, run.scores) == (best["step"], best["scores"])
    assert cli.main([*command, "--config.data.label=stars"]) == 2
    assert "--config.data.label=stars" in capsys.readouterr().err
