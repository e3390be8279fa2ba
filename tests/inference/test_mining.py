"""Hard negatives: those of plain loops, and files that training reads."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.embeddings import tiny_model
from support.fine_tuned import make_run, make_task
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import cli
from bert_jax.convert.formats import work_directory
from bert_jax.errors import UserError
from bert_jax.inference import predictor
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.mining import Mining, mine

COLORS, ANIMALS = ("red", "blue", "green"), ("cat", "dog", "bird")
PAIRS = [(f"the {color} {animal}", f"{animal} {color}") for color in COLORS for animal in ANIMALS]


def by_hand(anchors, positives, candidates, vectors, options, scorer):
    for i, (anchor, positive) in enumerate(zip(anchors, positives, strict=True)):
        right = {p for a, p in zip(anchors, positives, strict=True) if a == anchor} | {anchor}
        cosines = vectors[2] @ vectors[0][i]
        near = np.argsort(-cosines, kind="stable")[options.skip : options.depth]
        cosine = vectors[0][i] @ vectors[1][i]
        limit = cosine * (options.share if cosine > 0 else 2 - options.share)
        kept = []
        for number in near:
            text, score = candidates[number], cosines[number]
            if scorer:
                score, limit = scorer([(anchor, text)])[0], scorer([(anchor, positive)])[0] - options.margin
            if text not in right and score <= limit:
                kept.append(text)
        yield kept[: options.count]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100), count=st.integers(1, 4), skip=st.integers(0, 2), scored=st.booleans())
def test_negatives_are_near_and_not_right(seed, count, skip, scored):
    rng = np.random.default_rng(seed)
    texts = {f"t{i}": rng.normal(size=4) for i in range(14)}
    texts = {name: (x / np.linalg.norm(x)).astype(np.float32) for name, x in texts.items()}
    anchors = [f"t{i}" for i in rng.integers(0, 6, 9)]
    positives = [f"t{i}" for i in rng.integers(0, 14, 9)]
    candidates = list(dict.fromkeys(positives + [f"t{i}" for i in range(10, 14)]))
    vectors = tuple(np.stack([texts[name] for name in names]) for names in (anchors, positives, candidates))
    options = Mining(count, skip, depth=skip + count + 4, share=0.8, margin=0.3)

    def score(pairs):
        return np.array([float(int(a[1:]) * 7 % 5 - int(b[1:]) * 3 % 4) for a, b in pairs])

    scorer = score if scored else None
    found = list(mine(anchors, positives, candidates, vectors, options, scorer))
    assert found == list(by_hand(anchors, positives, candidates, vectors, options, scorer))


@pytest.fixture
def run(tmp_path, capsys):
    model = tiny_model(tmp_path)
    work_directory.FORMAT.write(model, tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("q\ta\n" + "".join(f"{q}\t{a}\n" for q, a in PAIRS))
    (tmp_path / "more.txt").write_text("one big cat\n\n \ntwo\n")

    def call(*flags, output="out.jsonl", code=0):
        command = ["search", f"--model={tmp_path / 'model'}", f"--input={tmp_path / 'pairs.tsv'}"]
        command += ["--text_a=q", "--text_b=a", f"--output={tmp_path / output}", *flags]
        capsys.readouterr()
        assert cli.main(command) == code
        return capsys.readouterr()

    return call, tmp_path, model


@pytest.mark.long
def test_what_is_written_is_read_by_training(run, vocabulary):  # noqa: F811
    call, folder, model = run
    shown = call("--negatives=2", "--share=1.5", f"--corpus={folder / 'more.txt'}").out
    assert "9 pairs with 2 negatives each, of 11 texts; 0 with fewer skipped" in shown
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    candidates = [a for _, a in PAIRS] + ["one big cat", "two"]
    embedder = Embedder(model)
    for row, (question, answer) in zip(rows, PAIRS, strict=True):
        assert (row["q"], row["a"]) == (question, answer)
        cosines = embedder.unit_vectors(candidates) @ embedder.unit_vectors([question])[0]
        limit = 1.5 * cosines[candidates.index(answer)]
        near = [candidates[i] for i in np.argsort(-cosines) if cosines[i] <= limit]
        assert row["negatives"] == [text for text in near if text != answer][:2]
    call("--negatives=2", "--share=1.5", output="out.tsv")
    for name, negatives in (("out.jsonl", "negatives"), ("out.tsv", "negative1,negative2")):
        task = make_task(vocabulary, "embedding", text_a="q", text_b="a", negatives=negatives)
        assert task.encode(task.read_training(str(folder / name))).rows_per_example == 4


@pytest.mark.long
def test_a_model_of_pairs_decides(run, vocabulary):  # noqa: F811
    call, folder, _ = run
    ranker = make_run(folder / "ranker", vocabulary, "regression", text_a="a", text_b="b", label="c")
    call("--negatives=1", f"--rerank={ranker}", "--margin=-100")
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 9 and all(row["negatives"][0] != row["a"] for row in rows)
    error = call("--negatives=1", f"--rerank={ranker}", "--margin=100", "--overwrite", code=2).err
    assert "no pair has 1 negatives among 9 texts" in error


def test_the_model_of_pairs_is_computed_in_the_dtype_of_the_flag(run, monkeypatch):
    def refuse(*args, dtype="auto", **options):
        raise UserError(f"computed in {dtype}")

    monkeypatch.setattr(predictor, "Predictor", refuse)
    assert "computed in bfloat16" in run[0]("--rerank=x", "--dtype=bfloat16", "--overwrite", code=2).err


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--negatives=0"], "--negatives=0: expected 1 or more"),
        (["--depth=3"], "--depth=3: expected at least --negatives=4"),
        (["--margin=1"], "--margin is only for --rerank; leave it out"),
        (["--relevant=1"], "--relevant is only used with --rerank; leave it out"),
        (["--rerank=x", "--share=1"], "--share is not for --rerank; leave it out"),
        (["--text_a=c"], "pairs.tsv: no column 'c'; its columns are 'q', 'a'\n"),
        (["--corpus=none.txt", "--model=none"], "--corpus=none.txt: no such file"),
    ],
)
def test_mistakes(run, flags, message):
    assert message in run[0](*flags, code=2).err
