import numpy as np
import pytest
import sklearn.metrics
from support import fine_tuned

from bert_jax import tasks
from bert_jax.errors import UserError
from bert_jax.tasks.text import parse_class_weights

COLUMNS = {"text_a": "a", "text_b": "b", "label": "label"}


def make_task(vocabulary, **fields):
    return fine_tuned.make_task(vocabulary, "classification", None, fields, **COLUMNS)


def test_double_unordered_trains_on_both_orders_of_a_pair(vocabulary, tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\tlabel\none\ttwo\tyes\nthe cat\ta dog\tno\n")
    task = make_task(vocabulary, double_unordered=True)
    once = task.read_training(str(path))
    found = task.augmented(once)
    assert (found.texts_a, found.texts_b) == (once.texts_a + once.texts_b, once.texts_b + once.texts_a)
    assert found.labels == [1, 0, 1, 0] and len(task.encode(found)) == 4
    assert len(make_task(vocabulary).augmented(once)) == len(once) == 2
    assert task.augmented(once.first(1)).texts_a == ["one", "two"]  # as with train_rows=1


@pytest.mark.parametrize("positive, expected", [("", 0.0), ("defect", 0.8)])
def test_f1_is_that_of_the_positive_label(vocabulary, tmp_path, positive, expected):
    """The positive label is by default the second one; the start of a run prints it."""
    path = tmp_path / "train.tsv"
    path.write_text("a\tb\tlabel\n" + "x\ty\tdefect\n" * 2 + "x\ty\tok\n")
    task = make_task(vocabulary, metrics="accuracy, f1", positive_label=positive)
    examples = task.read_training(str(path))
    rows = task.encode(examples)
    assert task.labels == ("defect", "ok")
    assert task.describe(examples, rows) == (
        f"labels defect: 2, ok: 1; f1 scores the label {positive or 'ok'!r}"
    )
    always = task.decode(examples, rows, np.array([[0.9, 0.1]] * 3, np.float32))
    assert task.score(always) == pytest.approx({"accuracy": 2 / 3, "f1": expected})


def predictions_of(task, path, guesses):
    """Returns the examples, rows, outputs and decoded predictions of a file for given label numbers."""
    examples = task.read(str(path))
    outputs = np.eye(len(task.labels), dtype=np.float32)[guesses]
    rows = task.encode(examples)
    return examples, rows, outputs, task.decode(examples, rows, outputs)


def test_labels_that_training_lacks_count_as_errors(vocabulary, tmp_path):
    """A model with two labels reaches at most 0.96 if 4 of 100 rows have a third label."""
    (tmp_path / "train.tsv").write_text("a\tb\tlabel\nx\ty\tno\nx\ty\tyes\n")
    task = make_task(vocabulary, metrics="accuracy, f1, f1_macro, matthews")
    task.read_training(str(tmp_path / "train.tsv"))
    names = ["no", "yes"] * 48 + ["maybe"] * 4
    (tmp_path / "dev.tsv").write_text("a\tb\tlabel\n" + "".join(f"x\ty\t{name}\n" for name in names))
    examples, rows, outputs, found = predictions_of(task, tmp_path / "dev.tsv", [0, 1] * 50)
    guesses = ["no", "yes"] * 50
    assert task.score(found) == pytest.approx(
        {
            "accuracy": 0.96,
            "f1": sklearn.metrics.f1_score(np.array(names) == "yes", np.array(guesses) == "yes"),
            "f1_macro": sklearn.metrics.f1_score(names, guesses, average="macro", zero_division=0),
            "matthews": sklearn.metrics.matthews_corrcoef(names, guesses),
        }
    )
    assert "4 of 100 rows" in examples.notes[0] and "row 96: label 'maybe'" in examples.notes[0]
    assert [row[1:3] for row in found.mistakes()] == [("maybe", "no"), ("maybe", "yes")] * 2
    assert task.loss(rows, np.clip(outputs, 0.1, 0.9)) == pytest.approx(-np.log(0.9))  # of known labels
    assert "no: 48, yes: 48" in task.describe(examples, rows)


def test_class_weights():
    labels = ("no", "yes")
    assert parse_class_weights("", labels, [0, 1]) == ()
    assert parse_class_weights("balanced", labels, [0, 0, 0, 1]) == pytest.approx((4 / 6, 2))
    assert parse_class_weights("yes=2.5", labels, [0, 1]) == (1.0, 2.5)
    for text in ("maybe=2", "yes=0", "yes=much", "yes", "yes=2,no=1,yes=3"):
        with pytest.raises(UserError, match="expected balanced, or LABEL=WEIGHT"):
            parse_class_weights(text, labels, [0, 1])


def write_xnli(folder):
    """Writes XNLI-1.0 and XNLI-MT-1.0 with 24 rows in English, 24 in German and 12 in Chinese."""
    labels = ("contradiction", "entailment", "neutral")
    lines = ["language\tgold_label\tsentence1\tsentence2\tpairID"]
    lines += [
        f'{name}\t{labels[i % 3]}\tthe "cat" is\ta "dog\t{name}-{i}'
        for name, count in (("en", 24), ("de", 24), ("zh", 12))
        for i in range(count)
    ]
    of_training = [f"one\ttwo\t{label}" for label in ("contradictory", "entailment", "neutral")] * 8
    for name, rows in (
        ("XNLI-1.0/xnli.dev.tsv", lines),
        ("XNLI-MT-1.0/multinli/multinli.train.en.tsv", ["premise\thypo\tlabel", *of_training]),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("\n".join(rows) + "\n")


def test_xnli_is_scored_by_language(vocabulary, tmp_path):
    write_xnli(tmp_path)
    metrics = {"metrics": "average,accuracy_zh,accuracy,f1_macro"}
    task = fine_tuned.make_task(vocabulary, "xnli", tasks.get("xnli").labels, metrics)
    train, dev = (task.spec.file(str(tmp_path), split) for split in ("train", "dev"))
    assert task.read_training(train).labels == [0, 1, 2] * 8
    assert task.read_training(f"{train},{train}").rows == 48
    # Correct predictions: all in English, half in German, a quarter in Chinese.
    right = np.array([True] * 24 + [True, False] * 12 + [True, False, False, False] * 3)
    targets = np.array(task.read(dev).labels)
    guesses = np.where(right, targets, (targets + 1) % 3)
    found = predictions_of(task, dev, guesses)[3]
    scores = task.score(found)
    assert [*scores] == ["average", "accuracy_zh", "accuracy", "f1_macro"]
    assert scores["average"] == pytest.approx((1 + 0.5 + 0.25) / 3) and scores["accuracy_zh"] == 0.25
    assert scores["accuracy"] == pytest.approx(39 / 60)
    assert found.breakdown()["de"] == {"accuracy": 0.5, "examples": 24}
    found.write(str(tmp_path / "p.tsv"))
    header, first = (tmp_path / "p.tsv").read_text().splitlines()[:2]
    assert header.startswith("id\tlanguage\tprediction\tp(") and first.startswith("en-0\ten\tcontradiction")
    unlabeled = task.read_unlabeled(dev)
    assert unlabeled.labels == unlabeled.languages == [] and unlabeled.texts_b[0] == 'a "dog'
