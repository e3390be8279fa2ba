"""Sentence embeddings: read, encoded in groups, learned, evaluated, compared and embedded."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import fine_tuned

import bert_jax
from bert_jax import cli
from bert_jax.errors import UserError

COLORS, ANIMALS, NUMBERS = ("red", "green", "blue"), ("cat", "dog", "bird"), ("one", "two", "three")


def pairs(count, seed):
    """Two descriptions of the same thing; a third one with another color; and how much two of them share."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        color, animal, number = (str(rng.choice(words)) for words in (COLORS, ANIMALS, NUMBERS))
        other = str(rng.choice([one for one in COLORS if one != color]))
        wrong = f"{number} {animal}s {other}"
        same = bool(rng.integers(2))
        right = f"{number} {animal}s {color}"
        yield f"the {color} {animal} is {number}", right, wrong, right if same else wrong, same


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pairs")
    for name, count in (("train", 128), ("dev", 24)):
        rows = ("\t".join(map(str, row)) for row in pairs(count, len(name)))
        text = (
            "\n".join(["first\tsecond\twrong\tany\tscore", *rows])
            .replace("True", "4.5")
            .replace("False", "1")
        )
        (directory / f"{name}.tsv").write_text(text + "\n")
    return directory


def arguments(files, workdir, pretrained, *more):
    columns = dict(config="finetune/embedding", suffix="tsv", text="first", label="")
    return fine_tuned.command(files, workdir, pretrained, *fine_tuned.LEARNING, *more, **columns)


@pytest.mark.long
def test_a_run_finds_the_second_texts_and_its_vectors_are_those_of_embed(files, pretrained, tmp_path, capsys):
    workdir = tmp_path / "run"
    more = ("--config.data.text_b=second", "--config.data.negatives=wrong", "--config.epochs=6")
    shown, best = fine_tuned.learn(arguments(files, workdir, pretrained, *more), workdir, capsys)
    assert "128 examples" in shown and "3 texts per group" in shown
    assert f"try: bert-jax embed --model={workdir} --input=FILE --output=FILE" in shown
    assert best["mrr"] > 0.9 and best["recall10"] == 1

    new, rows = tmp_path / "new.tsv", [row[:2] for row in pairs(8, 9)]
    new.write_text("\n".join(["first\tsecond", *map("\t".join, rows)]) + "\n")
    cosines = [one["prediction"] for one in fine_tuned.predict(workdir, new)]
    texts, vectors = tmp_path / "texts.txt", tmp_path / "vectors.npy"
    texts.write_text("".join(f"{text}\n" for row in rows for text in row))
    assert cli.main(["embed", f"--model={workdir}", f"--input={texts}", f"--output={vectors}"]) == 0
    found = np.load(vectors).reshape(8, 2, -1)
    np.testing.assert_allclose(cosines, np.sum(found[:, 0] * found[:, 1], axis=-1), atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "more",
    [("--config.loss=cosent",), ("--config.loss=classes", "--config.data.eval_columns=first,any,score")],
    ids=["scores", "classes"],
)
def test_pairs_with_scores_or_classes(files, pretrained, tmp_path, more, capsys):
    workdir = tmp_path / "run"
    more += ("--config.data.text_b=any", "--config.data.label=score", "--config.epochs=12")
    command = arguments(files, workdir, pretrained, *more, "--config.accumulate_steps=2")
    _, best = fine_tuned.learn(command, workdir, capsys)
    assert set(best) == {"spearman", "pearson"} and best["spearman"] > 0.6


@pytest.mark.long
def test_single_texts_are_restored_and_the_decoder_is_left_behind(files, pretrained, tmp_path, capsys):
    workdir, folder = tmp_path / "run", tmp_path / "folder"
    more = ("--config.loss=denoising", "--config.data.eval_columns=first,second", "--config.epochs=8")
    more += ("--config.accumulate_steps=2", "--config.log_every=1")
    shown, best = fine_tuned.learn(arguments(files, workdir, pretrained, *more), workdir, capsys)
    assert "sequence packing: " in shown and set(best) >= {"mrr", "recall10"}
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    losses = [line["task_loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0] - 1
    report = json.loads((workdir / "initialized.json").read_text())
    assert {"mlm/transform/kernel", "mlm/bias"} < set(report["loaded"])
    assert report["new"] and all("/cross_attention/" in name for name in report["new"])

    convert = ["convert", f"--input={workdir}", f"--output={folder}", "--to=huggingface"]
    assert cli.main(convert) == 0
    names = list(load_file(folder / "model.safetensors"))
    assert names and not any("cross" in name or "cls.predictions" in name for name in names)
    mine, theirs = (bert_jax.load(str(path)) for path in (workdir, folder))
    assert mine.params.keys() == theirs.params.keys() and "mlm" not in mine.params
    texts = ["the red cat is one", "two dogs"]
    found = mine.encode(texts).pooled
    np.testing.assert_allclose(theirs.encode(texts).pooled, found, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)

    pairs = arguments(files, tmp_path / "pairs", workdir, "--config.data.text_b=second", "--config.epochs=1")
    assert cli.main(pairs) == 0  # from what single texts have taught


def test_single_texts_are_their_own_positives(files, vocabulary):
    task = fine_tuned.make_task(
        vocabulary, "embedding", text_a="first", eval_columns="first,any,score", eval="x.tsv"
    )
    rows = task.encode(task.read_training(str(files / "train.tsv")))
    assert rows.rows_per_example == 2 and len(rows) == 256
    texts = rows.targets["texts"].reshape(-1, 2)
    np.testing.assert_array_equal(texts[:, 0], texts[:, 1])
    assert len(np.unique(texts)) == 27  # of 3 colors, animals and numbers
    examples = task.read(str(files / "dev.tsv"))
    assert set(examples.labels) == {4.5, 1.0} and "targets" in task.encode(examples).targets
    without = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    task.model_config = task.model_config.replace(**without)
    with pytest.raises(UserError, match="needs a dropout rate"):
        task.read_training(str(files / "train.tsv"))
    with pytest.raises(UserError, match=r"data\.eval_columns"):
        fine_tuned.make_task(vocabulary, "embedding", text_a="first").read(str(files / "dev.tsv"))


def test_prefixes_and_negatives_of_a_json_list(vocabulary, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [
        {"q": "the cat", "p": "a cat", "n": ["a dog", "a bird"]},
        {"q": "a dog", "p": "one", "n": ["two", "a cat"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = dict(text_a="q", text_b="p", negatives="n", prefix_a="is ", prefix_b="big ")
    task = fine_tuned.make_task(vocabulary, "embedding", **more)
    rows = task.encode(task.read_training(str(path)))
    assert rows.rows_per_example == task.objective().group == 4
    assert rows.targets["texts"].tolist() == [0, 1, 2, 3, 2, 4, 5, 1]  # equal without their prefixes
    cls, sep = task.tokenizer.cls_id, task.tokenizer.sep_id
    texts = "is the cat, big a cat, big a dog, big a bird, is a dog, big one, big two, big a cat".split(", ")
    for row, ids in enumerate(task.tokenizer.encode_batch(texts)):
        tokens = rows.tokens[rows.offsets[row] : rows.offsets[row + 1]].tolist()
        assert tokens == [cls, *ids, sep]
    path.write_text(json.dumps(rows := {"q": "a", "p": "b", "n": []}) + "\n")
    with pytest.raises(UserError, match="0 negatives, expected 1 text"):
        task.read_training(str(path))
