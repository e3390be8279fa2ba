"""Questions with several answers: read, encoded in groups, learned, predicted."""

import json

import jax
import numpy as np
import pytest
from support.tiny_model import draw_parameters, tiny_config

from bert_jax import cli, tasks, tokenization
from bert_jax.objectives import losses
from bert_jax.objectives.multiple_choice import MultipleChoice
from bert_jax.parallel import sharding
from bert_jax.tasks import fields
from bert_jax.tasks.multiple_choice.task import MultipleChoiceTask
from bert_jax.tasks.rows import batches, outputs
from bert_jax.tasks.table import Examples

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


def make_task(vocabulary, *, max_seq_length=16, doc_stride=0, **columns):
    config = tasks.default_config("tiny")
    config.task, config.max_seq_length, config.doc_stride = "multiplechoice", max_seq_length, doc_stride
    config.data.update(dict(text_a="question", choices="a,b,c", label="right") | columns)
    tokenizer = tokenization.load(vocabulary)
    bert = tiny_config(tokenizer.vocab_size)
    return MultipleChoiceTask(
        fields.of_task(fields.of_run(config)), tasks.get("multiple_choice"), ("0", "1", "2"), tokenizer, bert
    )


def test_a_question_is_a_group_of_rows(vocabulary, files):
    found = make_task(vocabulary)
    examples = found.read(str(files / "dev.tsv"))
    data = found.encode(examples)
    assert data.rows_per_example == 3 and len(data) == 3 * len(examples) == 72
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


@pytest.mark.long
def test_the_softmax_is_over_the_choices_of_a_question(vocabulary, files):
    found = make_task(vocabulary)
    data = found.encode(found.read(str(files / "dev.tsv")))
    batch = batches.make_batch(data, np.array([3, 0, -1]), (16,))
    task = MultipleChoice(found.model_config, 3)
    params = draw_parameters(task)
    inputs = jax.device_get(task.prepare(batch, None, False))
    logits = jax.jit(task.logits)(params, inputs)
    apply = jax.jit(task.model.apply)
    single = np.empty((2, 3))
    for question in range(2):
        for choice in range(3):
            names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
            row = [inputs[name][question, choice][None] for name in names]
            single[question, choice] = apply({"params": params}, *row)[0, 0]
    np.testing.assert_allclose(logits[:2], single, atol=1e-5)
    total, weight = jax.jit(task.loss)(params, inputs, None)[0]["task"]
    expected = losses.cross_entropy(logits[:2], batch["targets"][:2, 0], np.ones(2, np.float32))[0]
    assert weight == 2 and total == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(jax.jit(task.predict)(params, batch).sum(-1), 1, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "windows", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "windows"]
)
def test_from_training_to_predictions(pretrained, files, tmp_path, capsys, windows):
    columns = ["--config.data.text_a=question", "--config.data.choices=a,b,c", "--config.data.label=right"]
    command = [
        "finetune",
        "--config=finetune/multiple_choice",
        f"--workdir={tmp_path / 'run'}",
        f"--config.init_from={pretrained}",
        f"--config.data.train={files / 'train.tsv'}",
        f"--config.data.eval={files / 'dev.tsv'}",
        *(
            ["--config.max_seq_length=6", "--config.doc_stride=1"]
            if windows
            else ["--config.max_seq_length=16"]
        ),
        "--config.batch_size=16",
        "--config.epochs=6",
        "--config.optimizer.learning_rate=3e-3",
        *columns,
    ]
    assert cli.main(command) == 0
    assert ("48 windows (of 24 examples, up to 2 each)" in capsys.readouterr().out) == windows
    best = json.loads((tmp_path / "run" / "best.json").read_text())
    assert best["scores"]["accuracy"] > 0.9  # chance is a third
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={tmp_path / 'run'}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"] == best["scores"]
    out = tmp_path / "out.jsonl"
    unlabeled = tmp_path / "new.tsv"
    lines = (files / "dev.tsv").read_text().splitlines()
    unlabeled.write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    assert (
        cli.main(["predict", f"--workdir={tmp_path / 'run'}", f"--input={unlabeled}", f"--output={out}"]) == 0
    )
    predicted = [json.loads(line) for line in out.read_text().splitlines()]
    right = [line.rsplit("\t", 1)[1] for line in lines[1:]]
    share = np.mean([one["prediction"] == label for one, label in zip(predicted, right, strict=True)])
    assert share == pytest.approx(best["scores"]["accuracy"]) and set(predicted[0]["probabilities"]) == {
        "0",
        "1",
        "2",
    }


def long_questions():
    """Two that fit a row of 12 and one whose text has three windows of 5 words."""
    words = "one two three cat dog bird the a is one two three".split()
    return Examples(
        "q.tsv",
        ["x", "y", "z"],
        ["the cat", " ".join(words), "is"],
        [],
        [1, 0, 2],
        [1, 2, 3],
        [["red", "small", "blue"], ["a bird", "blue", "the one is red"], ["cat", "dog", "bird"]],
    )


@pytest.mark.long
def test_a_long_text_has_windows_with_every_choice(vocabulary):
    found = make_task(vocabulary, max_seq_length=12, doc_stride=4)
    examples = long_questions()
    data = found.encode(examples)
    assert (
        data.group_examples.tolist() == [0, 1, 1, 1, 2] and data.rows_per_example == 3 and data.truncated == 0
    )
    np.testing.assert_allclose(
        data.row_weights[::3], np.array([1, 1 / 3, 1 / 3, 1 / 3, 1]) * 5 / 3, rtol=1e-6
    )
    assert data.targets["targets"][::3].tolist() == [1, 0, 0, 0, 2]
    text, *choices = found.tokenizer.encode_batch([examples.texts_a[1], *examples.choices[1]])
    cls, sep = found.tokenizer.cls_id, found.tokenizer.sep_id
    for window, start in enumerate((0, 4, 7)):
        for choice, ids in enumerate(choices):
            row = 3 * (1 + window) + choice
            tokens = data.tokens[data.offsets[row] : data.offsets[row + 1]].tolist()
            assert tokens == [cls, *text[start : start + 5], sep, *ids, sep]

    # Its loss is the mean over questions, its output the mean over a question's windows.
    task = found.objective()
    rng = np.random.default_rng(0)  # parameters so large that windows differ
    params = jax.tree.map(lambda x: x + np.float32(rng.normal(0, 0.3, x.shape)), draw_parameters(task))
    batch = batches.make_batch(data, np.array([0, 1, 2, 3, 4, -1]), (12,))
    prepared = jax.device_get(task.prepare(batch, None, True))
    total, weight = jax.jit(task.loss)(params, prepared, None)[0]["task"]
    predicted = np.asarray(jax.jit(task.predict)(params, batch))[:5]
    each = -np.log(predicted[np.arange(5), [1, 0, 0, 0, 2]])
    assert weight == task.weights(prepared)["task"] == 5
    assert float(total) / 5 == pytest.approx(np.mean([each[0], each[1:4].mean(), each[4]]), rel=1e-4)
    mesh = sharding.make_mesh()
    joined = outputs.predict_all(outputs.make_predict(task, mesh), params, data, outputs.Shapes(8), mesh)
    expected = np.stack([predicted[0], predicted[1:4].mean(axis=0), predicted[4]])
    np.testing.assert_allclose(joined, expected, atol=1e-5)
    assert np.ptp(predicted[1:4], axis=0).max() > 1e-3
    right = np.mean(expected.argmax(-1) == [1, 0, 2])
    assert found.score(found.decode(examples, data, joined)) == {"accuracy": right}
    assert found.loss(data, joined) == pytest.approx(-np.log(expected[[0, 1, 2], [1, 0, 2]]).mean(), rel=1e-4)
    assert [one["id"] for one in found.decode(examples, data, joined).records()] == ["x", "y", "z"]


def test_choices_in_a_json_list_that_go_on_from_a_text(vocabulary, tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text(
        json.dumps({"q": "the cat", "s": "is", "c": ["red", "small"], "y": 1})
        + "\n"
        + json.dumps({"q": "the dog", "s": "is", "c": ["blue", "big"], "y": 0})
        + "\n"
    )
    found = make_task(vocabulary, text_a="q", text_b="s", choices="c", label="y")
    found.labels = ("0", "1")
    examples = found.read(str(path))
    assert examples.choices == [["red", "small"], ["blue", "big"]] and examples.labels == [1, 0]
    data = found.encode(examples)
    tokens = data.tokens[data.offsets[1] : data.offsets[2]].tolist()
    first, second = found.tokenizer.encode_batch(["the cat", "is small"])
    assert tokens == [found.tokenizer.cls_id, *first, found.tokenizer.sep_id, *second, found.tokenizer.sep_id]


def test_letters_and_a_few_bad_rows(vocabulary, tmp_path):
    path = tmp_path / "q.csv"
    rows = [f"is {i},cat,dog,{label}" for i, label in enumerate(("A", "b", "1", "0", "B") * 20)]
    path.write_text("\n".join(["q,a,b,y", *rows[:7], "is it,cat,dog,C", *rows[7:]]) + "\n")
    found = make_task(vocabulary, text_a="q", choices="a,b", label="y")
    found.labels = ("0", "1")
    examples = found.read(str(path))
    assert examples.labels == [0, 1, 1, 0, 1] * 20 and examples.malformed == 1
    assert f"{path}:9: label 2: expected 0 to 1" in examples.warning()
