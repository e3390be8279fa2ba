"""Scores of vectors: correlations, and documents found."""

import json

import numpy as np
import pytest
from support.embeddings import tiny_model
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import cli
from bert_jax.convert.formats import work_directory
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.inference import embedding_scores
from bert_jax.inference.embedding import Embedder
from bert_jax.tasks import metrics

DOCUMENTS = {f"d{i}": f"the {color} {animal}" for i, (color, animal) in enumerate(
    (color, animal) for color in ("red", "blue", "green") for animal in ("cat", "dog", "bird"))}  # fmt: skip
QUERIES = {"q0": "a red cat", "q1": "one bird", "d4": "the blue dog", "q3": "two"}
JUDGED = {"q0": {"d0": 2, "d1": 1}, "q1": {"d2": 1, "d5": 1, "d8": 1, "gone": 1}, "d4": {"d4": 1, "d1": 1}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    model = tiny_model(tmp_path_factory.mktemp("model"))
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    sentence = SentenceVectors("max", True, 0, {"query": "is ", "passage": "big "})
    work_directory.FORMAT.write(model.replace(sentence=sentence), directory)
    return directory, model


def evaluate(capsys, checkpoint, *flags, code=0):
    capsys.readouterr()
    assert cli.main(["evaluate", f"--model={checkpoint[0]}", *flags]) == code
    captured = capsys.readouterr()
    return captured.err if code else json.loads(captured.out)["scores"]


def vectors(checkpoint, texts, prefix=""):
    return Embedder(checkpoint[1], pooling="max", normalize=True).embed(texts, prefix)


@pytest.mark.long
def test_cosines_of_pairs_are_correlated_with_their_scores(checkpoint, tmp_path, capsys):
    first, second = list(DOCUMENTS.values())[:6], [*QUERIES.values(), "a dog", "the bird"]
    scores = [1, 5, 2, 2.5, 0, 4]
    path = tmp_path / "pairs.csv"
    rows = [f"{a},{b},{s}" for a, b, s in zip(first, second, scores, strict=True)]
    path.write_text("\n".join(["a,b,s", *rows]) + "\n")
    found = evaluate(capsys, checkpoint, f"--similarity={path}", "--columns=a,b,s", "--json")
    cosines = np.sum(vectors(checkpoint, first) * vectors(checkpoint, second), axis=-1)
    assert found["pairs"] == 6 and found["spearman"] == pytest.approx(metrics.spearman(cosines, scores))
    assert found["pearson"] == pytest.approx(metrics.pearson(cosines, scores), abs=1e-5)
    assert "expected TEXT,TEXT,SCORE" in evaluate(
        capsys, checkpoint, f"--similarity={path}", "--columns=a,b", code=2
    )


def write_beir(folder):
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": one, "title": "", "text": text}) for one, text in rows.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    rows = [f"{query}\t{document}\t{gain}" for query, of in JUDGED.items() for document, gain in of.items()]
    rows.append("q3\td1\t0")
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n")
    return folder


def by_cosine(checkpoint, query):
    """Returns the documents of a query, the nearest first."""
    (asked,) = vectors(checkpoint, [QUERIES[query]], "is ")
    scores = vectors(checkpoint, list(DOCUMENTS.values()), "big ") @ asked
    return [f"d{i}" for i in np.argsort(-scores, kind="stable") if f"d{i}" != query]


def expected_scores(orders):
    expected = {"ndcg10": [], "mrr10": [], "recall10": [], "recall100": []}
    for query, gains in JUDGED.items():
        places = {document: place for place, document in enumerate(orders[query], 1)}
        ideal = sum(gain / np.log2(1 + rank) for rank, gain in enumerate(sorted(gains.values())[::-1], 1))
        dcg = sum(gain / np.log2(1 + places[one]) for one, gain in gains.items() if one in places)
        expected["ndcg10"].append(dcg / ideal)
        expected["mrr10"].append(1 / min(places[one] for one in gains if one in places))
        for name in ("recall10", "recall100"):
            expected[name].append(sum(one in places for one in gains) / len(gains))
    return {name: pytest.approx(np.mean(values)) for name, values in expected.items()}


def test_documents_that_are_found(checkpoint, tmp_path, capsys):
    folder = write_beir(tmp_path / "beir")
    found = evaluate(capsys, checkpoint, f"--retrieval={folder}", "--json")
    expected = expected_scores({query: by_cosine(checkpoint, query) for query in JUDGED})
    assert found == {"documents": 9, "queries": 3} | expected


def test_only_the_first_ten_count():
    ranked = {"q": [f"d{i}" for i in range(40)]}
    scores = embedding_scores.ranking_scores({"q": {"d9": 1, "d10": 3}}, ranked)
    ideal = 3 + 1 / np.log2(3)
    assert scores == pytest.approx(
        {"ndcg10": 1 / np.log2(11) / ideal, "mrr10": 0.1, "recall10": 0.5, "recall100": 1.0}
    )
    missed = embedding_scores.ranking_scores({"q": {"other": 1}}, ranked)
    assert set(missed.values()) == {0.0}


@pytest.mark.parametrize(
    "content, message",
    [
        ("query-id\tcorpus-id\tscore\nq0\td0\tyes\n", "test.tsv:2: "),
        ("query-id\tcorpus-id\tscore\nq0\te0\t1\n", "corpus.jsonl"),
        ("query-id\tcorpus-id\tscore\nq9\td0\t1\n", "queries.jsonl"),
    ],
)
def test_mistakes_in_judgments(checkpoint, tmp_path, capsys, content, message):
    folder = write_beir(tmp_path / "beir")
    path = folder / "qrels" / "test.tsv"
    path.write_text(content)
    assert message in evaluate(capsys, checkpoint, f"--retrieval={folder}", code=2)
