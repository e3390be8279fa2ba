"""`finetune`, `evaluate` and `predict` of tags, as a user calls them, on a tiny checkpoint."""

import json

import numpy as np
import pytest
from support.fine_tuned import command_that_learns, learn, make_task
from support.stored_params import stored_params
from support.tags import to_iob1

from bert_jax import cli
from bert_jax.tasks.tagging import entities, read_sentences

COLORS, ANIMALS = ("red", "green", "blue"), ("cat", "dog", "bird")


def sentences(count, seed):
    """A color before animals, as "red cat dog", is an entity THING, "one two" one of NUM; the rest is O."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words, tags = [], []
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(3)
            if kind == 0:
                words += [str(rng.choice(COLORS)), *map(str, rng.choice(ANIMALS, rng.integers(1, 3)))]
                tags += ["B-THING"] + ["I-THING"] * (len(words) - len(tags) - 1)
            elif kind == 1:
                words += [str(rng.choice(("one", "two")))]
                tags += ["B-NUM"]
            words += list(map(str, rng.choice(("the", "a", "is"), rng.integers(1, 3))))
            tags += ["O"] * (len(words) - len(tags))
        yield words, tags


def conll(examples, scheme=to_iob1):
    """With a document border before every tenth sentence, and a column in the middle."""
    out = []
    for i, (words, tags) in enumerate(examples):
        if i % 10 == 0:
            out.append("-DOCSTART- -X- O\n")
        out.append("".join(f"{word} x {tag}\n" for word, tag in zip(words, scheme(tags), strict=True)))
    return "\n".join(out)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("files")
    (directory / "eng.train").write_text(conll(sentences(120, 0)))
    (directory / "eng.testa").write_text(conll(sentences(31, 1), list))
    return directory


def arguments(files, workdir, pretrained, *more):
    fields = ["--config.epochs=20", "--config.eval.every=1000"]
    return command_that_learns("finetune/conll", files, workdir, pretrained, *fields, *more)


@pytest.mark.long
def test_evaluation_has_a_table_and_writes_what_conlleval_reads(finetuned, files, tmp_path, capsys):
    capsys.readouterr()
    assert cli.main(["evaluate", f"--workdir={finetuned}", "--json", f"--output={tmp_path}/dev.conll"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    best = json.loads((finetuned / "best.json").read_text())
    assert found["scores"] == pytest.approx(best["scores"])
    truth = read_sentences(str(files / "eng.testa"))
    written = read_sentences(str(tmp_path / "dev.conll"))
    guess = written.tags
    assert read_sentences(str(tmp_path / "dev.conll"), tag="1").tags == truth.tags
    assert (written.words, written.documents) == (truth.words, truth.documents)
    counts = entities.count(truth.tags, guess)
    assert entities.total(counts).scores["f1"] == pytest.approx(best["scores"]["f1"])
    assert found["by_class"] == {type: n.scores | n._asdict() for type, n in counts.items()}
    assert cli.main(["evaluate", f"--workdir={finetuned}"]) == 0
    table = capsys.readouterr().out.splitlines()[-3:]
    assert table[0].split() == ["f1", "precision", "recall", "right", "predicted", "gold"]
    assert [line.split()[0] for line in table[1:]] == ["NUM", "THING"]


@pytest.mark.long
def test_predictions_keep_the_sentences(finetuned, tmp_path):
    words = [["the", "red", "cat", "is"], ["\u200b", "two", "the"], ["one"] * 40 + ["the"]]
    (tmp_path / "new.txt").write_text("\n".join("".join(f"{word}\n" for word in line) for line in words))
    command = ["predict", f"--workdir={finetuned}", f"--input={tmp_path}/new.txt"]
    assert cli.main([*command, f"--output={tmp_path}/out.conll"]) == 0
    written = read_sentences(str(tmp_path / "out.conll"))
    assert written.words == words
    assert written.tags[0] == ["O", "B-THING", "I-THING", "O"]
    assert cli.main([*command, f"--output={tmp_path}/out.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["words"] for row in rows] == words and [row["tags"] for row in rows] == written.tags
    (entity,) = rows[0]["entities"]
    probability = entity.pop("probability")
    assert entity == {"type": "THING", "start": 1, "end": 3, "text": "red cat"} and 0.5 < probability <= 1


@pytest.mark.long
@pytest.mark.parametrize(
    "head, mix, cached",
    [("linear", "weighted", False), pytest.param("bilstm", "concat", True, marks=pytest.mark.slow)],
    ids=["linear-weighted-anew", "bilstm-kept"],
)
def test_a_frozen_encoder_stays_as_it_is(files, pretrained, tmp_path, monkeypatch, capsys, head, mix, cached):
    if not cached:
        monkeypatch.setattr("bert_jax.tasks.tagging._MAX_BYTES", 0)
    run = tmp_path / "run"
    options = ["--config.frozen=true", f"--config.head={head}", "--config.epochs=2"]
    options += ["--config.head_size=8"] if head == "bilstm" else []
    options += ["--config.feature_layers=0,-1", f"--config.feature_mix={mix}"]
    options += ["--config.model.hidden_dropout_prob=0.1"]
    shown, _ = learn(arguments(files, run, pretrained, *options), run, capsys)
    assert ("computed once" in shown) == cached
    before = stored_params(pretrained)
    after = stored_params(run)
    kept = [name for name in after if name.startswith("encoder/")]
    assert kept and all(np.array_equal(before[name], after[name]) for name in kept)
    heads = {name: value for name, value in after.items() if name.startswith("classifier/")}
    assert heads and all(np.any(value) for value in heads.values())  # biases begin as zeros


@pytest.mark.parametrize("tag", ["B-DATE", "I-DATE", "DATE", "b-date"])
def test_entities_of_a_type_that_training_lacks_are_missed(vocabulary, tmp_path, tag):
    """A perfect tagger of 96 sentences finds 96 of 100 entities: conlleval's F1 is 97.96."""
    task = make_task(vocabulary, "tagging", ("O", "B-PER", "I-PER"))
    gold = ["B-PER"] * 96 + [tag] * 4
    (tmp_path / "dev.conll").write_text("".join(f"a {one}\ncat O\n\n" for one in gold))
    examples = task.read(str(tmp_path / "dev.conll"))
    rows = task.encode(examples)
    best = [1, 0] * 96 + [0, 0] * 4
    outputs = np.zeros((len(rows.tokens), 3), np.float32)
    outputs[rows.word_tokens, best] = 1
    found = task.decode(examples, rows, outputs)
    assert task.score(found) == pytest.approx(
        {"f1": 2 * 96 / 196, "precision": 1, "recall": 0.96, "accuracy": 196 / 200}
    )
    (note,) = examples.notes
    assert "4 of 100 sentences" in note and f"sentence 96: label {tag!r}" in note
    assert task.loss(rows, outputs) == pytest.approx(0, abs=1e-6)  # of the words with a known tag
    assert [row[1:3] for row in found.mistakes()] == [(found.examples.tags[96][0], "O")] * 4
    assert set(found.breakdown()) == {"PER", tag.removeprefix("B-").removeprefix("I-")}
