"""Questions with several answers: read, encoded in groups, learned, predicted."""

import json

import numpy as np
import pytest
from tiny_model import draw_parameters, tiny_config

from bert_jax import cli, losses, tasks, tokenization
from bert_jax.errors import UserError
from bert_jax.tasks import batches
from bert_jax.tasks.multiple_choice import MultipleChoiceProblem, MultipleChoiceTask

COLORS, ANIMALS = ("red", "green", "blue"), ("cat", "dog", "bird")


def rows(count, seed=0):
    """An animal is right, a color and "small" are wrong."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        endings = [rng.choice(ANIMALS), rng.choice(COLORS), "small"]
        order = rng.permutation(3)
        yield ["the one is", *(str(endings[i]) for i in order), str(list(order).index(0))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("choices")
    for name, count in (("train", 96), ("dev", 24)):
        lines = ["question\ta\tb\tc\tright"] + ["\t".join(row) for row in rows(count, len(name))]
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return directory


def problem(vocabulary, **columns):
    config = tasks.default_config("tiny")
    config.task, config.max_length = "multiplechoice", 16
    config.data.update(dict(text_a="question", choices="a,b,c", label="right") | columns)
    tokenizer = tokenization.load(vocabulary)
    bert = tiny_config(tokenizer.vocab_size)
    return MultipleChoiceProblem(config, tasks.get("multiple_choice"), ("0", "1", "2"), tokenizer, bert)


def test_a_question_is_a_group_of_rows(vocabulary, files):
    found = problem(vocabulary)
    examples = found.read(str(files / "dev.tsv"))
    data = found.encode(examples)
    assert data.group == 3 and len(data) == 3 * len(examples) == 72
    for number in range(len(examples)):
        expected = [
            found.tokenizer.encode_batch([examples.texts_a[number], choice])
            for choice in examples.choices[number]
        ]
        for choice, (first, second) in enumerate(expected):
            row = 3 * number + choice
            begin, end = data.offsets[row : row + 2]
            cls, sep = found.tokenizer.cls_id, found.tokenizer.sep_id
            assert data.tokens[begin:end].tolist() == [cls, *first, sep, *second, sep]
            assert data.targets["targets"][row] == examples.labels[number]


def test_the_softmax_is_over_the_choices_of_a_question(vocabulary, files):
    found = problem(vocabulary)
    data = found.encode(found.read(str(files / "dev.tsv")))
    batch = batches.make_batch(data, np.array([3, 0, -1]), (16,))
    task = MultipleChoiceTask(found.bert, 3)
    params = draw_parameters(task)
    logits = task.logits(params, task.prepare(batch, None, False))
    inputs = task.prepare(batch, None, False)
    single = np.empty((2, 3))
    for question in range(2):
        for choice in range(3):
            names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
            row = [inputs[name][question, choice][None] for name in names]
            single[question, choice] = task.model.apply({"params": params}, *row)[0, 0]
    np.testing.assert_allclose(logits[:2], single, atol=1e-5)
    total, weight = task.loss(params, inputs, None)[0]["task"]
    expected = losses.cross_entropy(logits[:2], batch["targets"][:2, 0], np.ones(2, np.float32))[0]
    assert weight == 2 and total == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(task.predict(params, batch).sum(-1), 1, rtol=1e-5)


def test_from_training_to_predictions(pretrained, files, tmp_path, capsys):
    columns = ["--config.data.text_a=question", "--config.data.choices=a,b,c", "--config.data.label=right"]
    command = [
        "finetune",
        "--config=configs/finetune/multiple_choice.py",
        f"--workdir={tmp_path / 'run'}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files / 'train.tsv'}",
        f"--config.data.eval={files / 'dev.tsv'}",
        "--config.max_length=16",
        "--config.batch_size=16",
        "--config.epochs=6",
        "--config.optimizer.learning_rate=3e-3",
        *columns,
    ]
    assert cli.main(command) == 0
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["scores"]["accuracy"] > 0.9  # chance is a third
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={tmp_path / 'run'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == best["scores"]
    out = tmp_path / "out.jsonl"
    unlabelled = tmp_path / "new.tsv"
    lines = (files / "dev.tsv").read_text().splitlines()
    unlabelled.write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    assert (
        cli.main(["predict", f"--workdir={tmp_path / 'run'}", f"--input={unlabelled}", f"--output={out}"])
        == 0
    )
    predicted = [json.loads(line) for line in out.read_text().splitlines()]
    right = [line.rsplit("\t", 1)[1] for line in lines[1:]]
    share = np.mean([one["prediction"] == label for one, label in zip(predicted, right, strict=True)])
    assert share == pytest.approx(best["scores"]["accuracy"]) and set(predicted[0]["probabilities"]) == {
        "0",
        "1",
        "2",
    }


def test_the_authors_files(shared_data, vocabulary):
    codah = shared_data / "codah" / "dev.tsv"
    config = tasks.default_config("tiny")
    config.task = "codah"
    tokenizer = tokenization.load(vocabulary)
    found = MultipleChoiceProblem(
        config, tasks.get("codah"), None, tokenizer, tiny_config(tokenizer.vocab_size)
    )
    examples = found.read(str(codah))
    assert len(examples) == 556 and all(len(choices) == 4 for choices in examples.choices)
    assert set(examples.labels) == {0, 1, 2, 3}


def test_choices_in_a_json_list_that_go_on_from_a_text(vocabulary, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        json.dumps({"q": "the cat", "s": "is", "c": ["red", "small"], "y": 1})
        + "\n"
        + json.dumps({"q": "the dog", "s": "is", "c": ["blue", "big"], "y": 0})
        + "\n"
    )
    found = problem(vocabulary, text_a="q", text_b="s", choices="c", label="y")
    found.labels = ("0", "1")
    examples = found.read(str(path))
    assert examples.choices == [["red", "small"], ["blue", "big"]] and examples.labels == [1, 0]
    data = found.encode(examples)
    tokens = data.tokens[data.offsets[1] : data.offsets[2]].tolist()
    first, second = found.tokenizer.encode_batch(["the cat", "is small"])
    assert tokens == [found.tokenizer.cls_id, *first, found.tokenizer.sep_id, *second, found.tokenizer.sep_id]


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("q\ta\tb\ty\nx\t1\t2\t2\n", {}, r":2: the right choice is 2, expected a number from 0 to 1"),
        ("q\ta\tb\ty\nx\t1\t2\tyes\n", {}, r":2: label 'yes' is no number of a choice"),
        ("q\ta\tb\ty\nx\t1\t2\t0\n", {"choices": "a"}, "1 choices, expected 2 or more"),
        ("q\ta\tb\ty\nx\t1\t2\t0\n", {"choices": ""}, "which columns hold the choices"),
        ("q\ta\tb\ty\nx\t1\t2\t0\n", {"choices": "a,d"}, "no column 'd'"),
        ("q\ta\tb\ty\nx\t1\t2\t0\n", {"label": ""}, "which column holds the right choice"),
    ],
    ids=["outside", "no-number", "one", "none", "missing", "unlabelled"],
)
def test_mistakes(vocabulary, tmp_path, content, columns, message):
    path = tmp_path / "q.tsv"
    path.write_text(content)
    found = problem(vocabulary, **dict(text_a="q", choices="a,b", label="y") | columns)
    found.labels = None
    with pytest.raises(UserError, match=message):
        found.read(str(path))
