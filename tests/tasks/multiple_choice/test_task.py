"""Questions with several answers: read, encoded in groups, learned, predicted."""

import itertools

import numpy as np
import pytest
from support import fine_tuned

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


def test_a_question_is_a_group_of_rows(vocabulary, files):
    columns = dict(text_a="question", choices="a,b,c", label="right")
    found = fine_tuned.make_task(vocabulary, "multiplechoice", ("0", "1", "2"), **columns)
    examples = found.read(str(files / "dev.tsv"))
    data = found.encode(examples)
    assert data.rows_per_example == 3 and len(data) == 3 * len(examples) == 72
    cls, sep = found.tokenizer.cls_id, found.tokenizer.sep_id
    for row, (begin, end) in enumerate(itertools.pairwise(data.offsets)):
        number, choice = divmod(row, 3)
        texts = [examples.texts_a[number], examples.choices[number][choice]]
        first, second = found.tokenizer.encode_batch(texts)
        assert data.tokens[begin:end].tolist() == [cls, *first, sep, *second, sep]
        assert data.targets["targets"][row] == examples.labels[number]


@pytest.mark.long
def test_from_training_to_predictions(pretrained, files, tmp_path, capsys):
    run, flags = tmp_path / "run", ["--config.data.choices=a,b,c", "--config.epochs=6", *fine_tuned.LEARNING]
    columns = dict(config="finetune/multiple_choice", suffix="tsv", text="question", label="right")
    command = fine_tuned.command(files, run, pretrained, *flags, **columns)
    _, best = fine_tuned.learn(command, run, capsys)
    assert best["accuracy"] > 0.9  # chance is a third
    lines = (files / "dev.tsv").read_text().splitlines()
    unlabeled = tmp_path / "new.tsv"
    unlabeled.write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    predicted = fine_tuned.predict(run, unlabeled)
    right = [line.rsplit("\t", 1)[1] for line in lines[1:]]
    share = np.mean([one["prediction"] == label for one, label in zip(predicted, right, strict=True)])
    assert share == pytest.approx(best["accuracy"]) and set(predicted[0]["probabilities"]) == {*"012"}
