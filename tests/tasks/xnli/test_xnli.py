"""XNLI from files as they were released: the three ways to other languages, and scores by language."""

import json

import numpy as np
import pytest
from support.fine_tuned import make_config, make_task

from bert_jax.errors import UserError
from bert_jax.tasks import fields, setup

HEADER = [
    *"language gold_label sentence1_binary_parse sentence2_binary_parse sentence1_parse".split(),
    *"sentence2_parse sentence1 sentence2 promptID pairID genre label1 label2 label3 label4 label5".split(),
    *"sentence1_tokenized sentence2_tokenized match".split(),
]
LABELS = ("contradiction", "entailment", "neutral")
WORDS = {"en": ("cat", "dog", "bird"), "de": ("one", "two", "three"), "zh": ("red", "blue", "green")}


def row(language, number):
    """A pair whose label is that of the first word of the hypothesis."""
    words, label = WORDS[language], number % 3
    values = dict.fromkeys(HEADER, "") | {
        "language": language,
        "gold_label": LABELS[label],
        "sentence1": f'the "{words[(number + 1) % 3]}" is',
        "sentence2": f"{words[label]} is the {words[number // 3 % 3]}",
        "promptID": "1",
        "pairID": f"{language}-{number}",
        "match": "True",
    }
    return values


def write(path, rows):
    if path.suffix == ".jsonl":
        lines = [json.dumps(values) for values in rows]
    else:
        lines = ["\t".join(HEADER), *("\t".join(values.values()) for values in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def archive(tmp_path):
    """XNLI-1.0 and XNLI-MT-1.0 with 24 rows of English and of German, and 12 of Chinese."""
    rows = [row(language, i) for language, n in (("en", 24), ("de", 24), ("zh", 12)) for i in range(n)]
    for split, suffix in (("dev", "tsv"), ("test", "jsonl")):
        write(tmp_path / "XNLI-1.0" / f"xnli.{split}.{suffix}", rows)
        # Translated into English: the language is that of the original.
        translated = [row("en", int(r["pairID"].split("-")[1])) | {"language": r["language"]} for r in rows]
        write(tmp_path / "XNLI-MT-1.0" / "xnli" / f"xnli.{split}.en.{suffix}", translated)
    for language in WORDS:
        path = tmp_path / "XNLI-MT-1.0" / "multinli" / f"multinli.train.{language}.tsv"
        path.parent.mkdir(exist_ok=True)
        lines = ["premise\thypo\tlabel"]
        for i in range(96):
            values = row(language, i)
            label = values["gold_label"].replace("contradiction", "contradictory")
            lines.append(f"{values['sentence1']}\t{values['sentence2']}\t{label}")
        path.write_text("\n".join(lines) + "\n")
    return tmp_path


def paths_and_task(archive, vocabulary, **given):
    config = fields.of_run(make_config(vocabulary, "xnli", given | {"data_dir": str(archive)}))
    task = make_task(vocabulary, "xnli", LABELS, given)
    return {split: setup.split_file(config, task.spec, split) for split in ("train", "dev", "test")}, task


def read(archive, vocabulary, **given):
    """The languages of the rows of each split, its first row, and the last path."""
    paths, task = paths_and_task(archive, vocabulary, **given)
    found = {split: task.read(path) for split, path in paths.items()}
    assert all(len(one) == one.rows or split != "train" for split, one in found.items())
    shown = {
        split: (
            dict(zip(*np.unique(one.languages, return_counts=True), strict=True)),
            one.texts_b[-1],
            one.labels[-1],
        )
        for split, one in found.items()
    }
    return shown, {split: path.removeprefix(str(archive)) for split, path in paths.items()}


def test_zero_shot_trains_on_english_and_evaluates_on_all(archive, vocabulary):
    found, paths = read(archive, vocabulary)
    assert paths["train"] == "/XNLI-MT-1.0/multinli/multinli.train.en.tsv"
    assert paths["dev"] == "/XNLI-1.0/xnli.dev.tsv" and paths["test"] == "/XNLI-1.0/xnli.test.jsonl"
    assert found["train"] == ({"en": 96}, "bird is the dog", 2)
    assert found["dev"] == found["test"] == ({"en": 24, "de": 24, "zh": 12}, "green is the red", 2)
    found, _ = read(archive, vocabulary, languages="zh, de")
    assert found["train"][0] == {"en": 96} and found["dev"][0] == {"de": 24, "zh": 12}


def test_translate_train_trains_on_the_languages(archive, vocabulary):
    found, paths = read(archive, vocabulary, transfer="translate_train", languages="de")
    assert paths["train"] == "/XNLI-MT-1.0/multinli/multinli.train.de.tsv"
    assert found["train"] == ({"de": 96}, "three is the two", 2) and found["dev"][0] == {"de": 24}
    found, _ = read(archive, vocabulary, transfer="translate_train", languages="en,de,zh")
    assert found["train"][0] == {"en": 96, "de": 96, "zh": 96}
    paths, task = paths_and_task(archive, vocabulary, transfer="translate_train", languages="en,zh")
    examples = task.read(paths["train"])
    # "contradictory" is the label contradiction.
    assert examples.labels == [0, 1, 2] * 64 and examples.rows == 192 and len(examples.ids) == 192


def test_translate_test_evaluates_on_translations(archive, vocabulary):
    found, paths = read(archive, vocabulary, transfer="translate_test", languages="de,zh")
    assert paths["dev"] == "/XNLI-MT-1.0/xnli/xnli.dev.en.tsv"
    assert paths["test"] == "/XNLI-MT-1.0/xnli/xnli.test.en.jsonl"
    assert found["dev"] == found["test"] == ({"de": 24, "zh": 12}, "bird is the cat", 2)
    assert found["train"][0] == {"en": 96}


def test_scores_by_language(archive, vocabulary, tmp_path):
    paths, task = paths_and_task(archive, vocabulary, metrics="average,accuracy_zh,accuracy,f1_macro")
    examples = task.read(paths["dev"])
    rows = task.encode(examples)
    # All of English, half of German, a quarter of Chinese.
    right = np.array([True] * 24 + [True, False] * 12 + [True, False, False, False] * 3)
    targets = np.array(examples.labels)
    outputs = np.eye(3, dtype=np.float32)[np.where(right, targets, (targets + 1) % 3)] * 0.5 + 0.1
    predictions = task.decode(examples, rows, outputs)
    scores = task.score(predictions)
    assert [*scores] == ["average", "accuracy_zh", "accuracy", "f1_macro"]
    assert scores["average"] == pytest.approx((1 + 0.5 + 0.25) / 3) and scores["accuracy_zh"] == 0.25
    assert scores["accuracy"] == pytest.approx(39 / 60)
    of_others = make_task(vocabulary, "xnli", LABELS, {"metrics": "accuracy_fr", "data_dir": str(archive)})
    with pytest.raises(UserError, match=r"metrics=accuracy_fr: .*xnli.dev.tsv has no row of this language"):
        of_others.score(predictions)
    assert predictions.breakdown() == {
        "en": {"accuracy": 1.0, "examples": 24},
        "de": {"accuracy": 0.5, "examples": 24},
        "zh": {"accuracy": 0.25, "examples": 12},
    }
    for name in ("p.tsv", "p.jsonl"):
        predictions.write(str(tmp_path / name))
    header, first = (tmp_path / "p.tsv").read_text().splitlines()[:2]
    assert header == "id\tlanguage\tprediction\tp(contradiction)\tp(entailment)\tp(neutral)"
    assert first.startswith("en-0\ten\tcontradiction\t0.600000")
    assert json.loads((tmp_path / "p.jsonl").read_text().splitlines()[-1])["language"] == "zh"
    predictions.report(str(tmp_path))
    lines = [line.split("\t") for line in (tmp_path / "errors-dev.tsv").read_text().splitlines()]
    assert lines[0][:4] == ["line", "language", "label", "prediction"] and len(lines) == 1 + 21
    assert lines[1][:4] == ["27", "de", "entailment", "neutral"]
    assert (tmp_path / "scores-dev.png").exists()
