"""Several labels a text: read, learned, scored, predicted."""

import csv
import json

import numpy as np
import pytest
from support import fine_tuned


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Every color and every animal of the text is a label."""
    directory = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, count in (("train", 160), ("dev", 25)):
        rows = [("text", "labels")]
        for _ in range(count):
            found = [word for word in ("red", "cat", "two") if rng.random() < 0.5]
            rows.append((" ".join(["the", *found, "is"]), ", ".join(found)))
        with open(directory / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)
    return directory


@pytest.mark.long
def test_from_training_to_predictions(files, pretrained, tmp_path, capsys):
    run = tmp_path / "run"
    flags = ["--config.task=multilabel", *fine_tuned.LEARNING, "--config.batch_size=32", "--config.epochs=40"]
    flags += ["--config.eval.every=100"]
    flags += ["--config.model.classifier_pooling=mean"]  # with [CLS], three seeds of four do not learn it
    command = fine_tuned.command(files, run, pretrained, *flags, label="labels")
    shown, best = fine_tuned.learn(command, run, capsys)
    assert "none: " in shown and best["f1_micro"] > 0.9
    assert json.loads((run / "config.json").read_text())["labels"] == ["cat", "red", "two"]
    for row in fine_tuned.predict(run, files / "dev.csv"):
        assert row["prediction"] == [label for label, p in row["probabilities"].items() if p > 0.5]


def test_labels_that_training_lacks_are_missed(vocabulary, tmp_path):
    """As scikit-learn scores a prediction that never has the label."""
    (tmp_path / "train.csv").write_text("text,labels\na,x\nb,y\n")
    texts = ["x", "y", '"x,y"', ""] * 6 + ['"x,z"']
    (tmp_path / "dev.csv").write_text("text,labels\n" + "".join(f"a,{one}\n" for one in texts))
    task = fine_tuned.make_task(vocabulary, "multilabel", text_a="text", label="labels")
    task.read_training(str(tmp_path / "train.csv"))
    examples = task.read(str(tmp_path / "dev.csv"))
    outputs = np.float32([[1, 0], [0, 1], [1, 1], [0, 0]] * 6 + [[1, 0]])
    rows = task.encode(examples)
    found = task.decode(examples, rows, outputs)
    assert task.score(found) == pytest.approx(
        {"f1_micro": 2 * 25 / (25 + 26), "f1_macro": 2 / 3, "exact_match": 24 / 25}
    )
    assert "1 of 25 rows" in examples.notes[0] and "row 24: label 'z'" in examples.notes[0]
    assert [(error[1], error[2]) for error in found.mistakes()] == [("x,z", "x")]
    assert rows.example_targets().shape == (25, 2)
