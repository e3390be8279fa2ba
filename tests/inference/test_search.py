"""Search, indexes and their damage, reranking, and hard negatives."""

import json
import random
import types

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
from bert_jax.inference import embedding, search
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.search import Reranker, mine, nearest
from bert_jax.inference.text_files import Document

QUERIES = np.eye(8, dtype=np.float32)
ENTAILMENT = ("entailment", "not_entailment")


class Embedder:
    """Gives texts the rows of a matrix, by their last character."""

    width = 8

    def stream(self, texts, progress, prefix=""):
        for text in texts:
            yield types.SimpleNamespace(values=QUERIES[int(text[-1]) % 8] + int(text[-2:]) / 100)


def make(directory, documents, corpus=__file__, embedder=Embedder):
    options = dict(made_by={"weights": "x", "prefix": ""}, log=lambda line: None)
    return search.make(str(directory), documents, embedder(), "model", corpus, **options)


def documents_of(prefix, count):
    return [Document(str(number), f"{prefix} {number:02}") for number in range(count)]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 60),
    queries=st.integers(0, 5),
    most=st.integers(1, 70),
    values=st.sampled_from([2, 1000]),
)
def test_the_largest_products_in_order_and_equal_ones_by_number(count, queries, most, values):
    rng = np.random.default_rng(count * 71 + queries)
    vectors = rng.integers(0, values, (count, 4)).astype(np.float32)
    asked = rng.integers(1, 3, (queries, 4)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_SCORES", 40)
        numbers, scores = nearest(asked, vectors, most)
    products = asked @ vectors.T
    expected = np.argsort(-products, axis=1, kind="stable")[:, :most]
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(products, expected, axis=1))


def test_an_open_index_is_searched_as_it_was_while_it_is_made_anew(tmp_path):
    make(tmp_path / "index", documents_of("old", 8))
    opened = search.Index(str(tmp_path / "index"))
    new = make(tmp_path / "index", documents_of("new and longer", 5))
    for index, begin, most in ((opened, "old", 8), (new, "new and longer", 5)):
        for number, (first, *_) in enumerate(index.search(QUERIES[:most], 3)):
            assert first.document.text == f"{begin} {number:02}" and first.score > 0.99


@pytest.fixture(scope="module")
def index_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    make(folder, documents_of("text", 64))
    return folder


def results(folder):
    return [*search.Index(str(folder)).search(QUERIES, 5)]


@pytest.mark.parametrize("name", [search.VECTORS, search.TEXTS])
def test_no_damaged_file_is_read(index_folder, name):
    expected, rng = results(index_folder), random.Random(0)
    content = (index_folder / name).read_bytes()
    places = [rng.randrange(len(content)) for _ in range(30)]
    damaged = [content[:i] + bytes([content[i] ^ 1 << rng.randrange(8)]) + content[i + 1 :] for i in places]
    try:
        for wrong in (*damaged, content[: len(content) // 2], b"", content + b"\0", bytes(len(content))):
            (index_folder / name).write_bytes(wrong)
            with pytest.raises(UserError, match=name):
                results(index_folder)
    finally:
        (index_folder / name).write_bytes(content)
    assert results(index_folder) == expected


def make_ranker(directory, vocabulary, task, labels=None, columns=None):  # noqa: F811
    columns = dict(text_a="query", text_b="document", label="judgment") if columns is None else columns
    return Predictor(str(make_run(directory, vocabulary, task, labels, **columns)), log=lambda line: None)


@pytest.mark.parametrize(
    "task, labels, columns, relevant",
    [("qnli", ENTAILMENT, {}, "entailment"), ("classification", ("9", "10"), None, "10")],
)
def test_the_score_is_the_probability_of_the_label_of_relevant_documents(
    tmp_path, vocabulary, task, labels, columns, relevant  # noqa: F811
):  # fmt: skip
    ranker = make_ranker(tmp_path / "run", vocabulary, task, labels, columns)
    reranker = Reranker(ranker, log=lambda line: None)
    (score,) = reranker.scores([("the cat", "a big dog")])
    (record,) = ranker.predict_rows(["the cat\ta big dog"])
    assert score == pytest.approx(record["probabilities"][relevant], abs=1e-5)
    assert score != pytest.approx(1 - score, abs=1e-3)
    found = [search.Result(Document(text, text), 0.0) for text in ("a dog", "the red cat", "one", "two")]
    reranker.candidates = 3
    ranked = reranker.rerank("the cat", found)
    scores = [result.score for result in ranked]
    assert scores[:3] == sorted(scores[:3], reverse=True) and ranked[3] == found[3]


def test_a_run_whose_score_is_not_known(tmp_path, vocabulary):  # noqa: F811
    ranker = make_ranker(tmp_path / "run", vocabulary, "classification", ("match", "mismatch"))
    with pytest.raises(UserError, match="labels 0 and 1"):
        Reranker(ranker, log=lambda line: None)


def negatives_by_hand(anchors, positives, candidates, vectors, count, depth, margin, scorer):
    for i, (anchor, positive) in enumerate(zip(anchors, positives, strict=True)):
        right = {p for a, p in zip(anchors, positives, strict=True) if a == anchor} | {anchor}
        cosines = vectors[2] @ vectors[0][i]
        near = np.argsort(-cosines, kind="stable")[:depth]
        cosine = vectors[0][i] @ vectors[1][i]
        limit = cosine - margin * abs(cosine)
        chosen = []
        for number in near:
            text, score = candidates[number], cosines[number]
            if scorer:
                score, limit = scorer([(anchor, text)])[0], scorer([(anchor, positive)])[0] - margin
            if text not in right and score <= limit:
                chosen.append(text)
        yield chosen[:count]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 100), count=st.integers(1, 4), scored=st.booleans())
def test_negatives_are_near_and_not_right(seed, count, scored):
    rng = np.random.default_rng(seed)
    texts = {f"t{i}": rng.normal(size=4) for i in range(14)}
    texts = {name: (x / np.linalg.norm(x)).astype(np.float32) for name, x in texts.items()}
    anchors = [f"t{i}" for i in rng.integers(0, 6, 9)]
    positives = [f"t{i}" for i in rng.integers(0, 14, 9)]
    candidates = list(dict.fromkeys(positives + [f"t{i}" for i in range(10, 14)]))
    vectors = tuple(np.stack([texts[name] for name in names]) for names in (anchors, positives, candidates))

    def score(pairs):
        return np.array([float(int(a[1:]) * 7 % 5 - int(b[1:]) * 3 % 4) for a, b in pairs])

    options = dict(count=count, depth=count + 4, margin=0.2, scorer=score if scored else None)
    found = list(mine(anchors, positives, candidates, vectors, **options))
    assert found == list(negatives_by_hand(anchors, positives, candidates, vectors, **options))


@pytest.mark.long
def test_hard_negatives_of_a_file_are_read_by_training(tmp_path, vocabulary):  # noqa: F811
    pairs = [(f"the {x} {y}", f"{y} {x}") for x in ("red", "blue", "green") for y in ("cat", "dog", "bird")]
    model = tiny_model(tmp_path)
    work_directory.FORMAT.write(model, tmp_path / "model")
    (tmp_path / "pairs.tsv").write_text("q\ta\n" + "".join(f"{q}\t{a}\n" for q, a in pairs))
    (tmp_path / "more.txt").write_text("one big cat\n\n \ntwo\n")
    command = ["search", f"--model={tmp_path / 'model'}", f"--input={tmp_path / 'pairs.tsv'}"]
    command += [
        "--text=q,a",
        "--negatives=2",
        "--margin=-0.5",
        f"--corpus={tmp_path / 'more.txt'}",
    ]
    assert cli.main([*command, f"--output={tmp_path / 'out.jsonl'}"]) == 0
    task = make_task(vocabulary, "embedding", text_a="q", text_b="a", negatives="negatives")
    assert task.encode(task.read_training(str(tmp_path / "out.jsonl"))).rows_per_example == 4
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    candidates = [a for _, a in pairs] + ["one big cat", "two"]
    embedder = embedding.Embedder(model)
    for row, (question, answer) in zip(rows, pairs, strict=True):
        cosines = embedder.unit_vectors(candidates) @ embedder.unit_vectors([question])[0]
        limit = 1.5 * cosines[candidates.index(answer)]
        near = [candidates[i] for i in np.argsort(-cosines) if cosines[i] <= limit]
        assert row["negatives"] == [text for text in near if text != answer][:2]
