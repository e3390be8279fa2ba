"""Search: an index is made once and used again, with a second model or without."""

import dataclasses
import json
import os

import numpy as np
import pytest
from support.embeddings import tiny_model
from support.fine_tuned import make_run
from support.pretrained import vocabulary  # noqa: F401

from bert_jax import cli
from bert_jax.convert import conversion
from bert_jax.convert.formats import work_directory
from bert_jax.convert.sentences import SentenceVectors
from bert_jax.inference import search as index
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.predictor import Predictor

DOCUMENTS = [f"the {size} {color} {animal}" for size in ("big", "small") for color in ("red", "blue", "green")
             for animal in ("cat", "dog", "bird")]  # fmt: skip
QUERIES = ["a red cat", "small green bird", "one"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    sentence = SentenceVectors("mean", True, 0, {"query": "is ", "document": "one "})
    return tiny_model(tmp_path_factory.mktemp("model")).replace(sentence=sentence)


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint") / "model"
    work_directory.FORMAT.write(model, directory)
    return directory


@pytest.fixture
def search(checkpoint, tmp_path, capsys):
    (tmp_path / "docs.txt").write_text("".join(f"{text}\n" for text in DOCUMENTS))
    (tmp_path / "queries.txt").write_text("".join(f"{text}\n" for text in QUERIES))

    def call(*flags, corpus="docs.txt", code=0):
        made = [f"--corpus={tmp_path / corpus}", f"--model={checkpoint}"] if corpus else []
        capsys.readouterr()
        assert cli.main(["search", f"--index={tmp_path / 'index'}", *made, *flags]) == code
        captured = capsys.readouterr()
        return [json.loads(line) for line in captured.out.splitlines()] if "--json" in flags else captured

    return call


def expected(model, most, documents=DOCUMENTS):
    vectors = Embedder(model).embed(documents, "one ")
    scores = Embedder(model).embed(QUERIES, "is ") @ vectors.T
    order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
    return order, np.take_along_axis(scores, order, axis=1)


@pytest.mark.long
def test_documents_are_found_by_their_vectors_with_the_prompts_of_the_model(search, model, tmp_path):
    order, scores = expected(model, 4)
    for corpus in ("docs.txt", ""):  # made, and used again
        found = search(f"--queries={tmp_path / 'queries.txt'}", "--json", "--top=4", corpus=corpus)
        assert [one["query"] for one in found] == QUERIES
        for row, one in enumerate(found):
            assert [result["text"] for result in one["results"]] == [DOCUMENTS[i] for i in order[row]]
            assert [result["id"] for result in one["results"]] == [str(i) for i in order[row]]
            np.testing.assert_allclose([x["score"] for x in one["results"]], scores[row], atol=1e-5)


def test_a_corpus_of_json_objects_has_titles_and_ids(search, model, tmp_path):
    rows = [{"_id": f"d{i}", "title": "the big", "text": text.removeprefix("the big ")} if i < 9 else
            {"id": i, "title": "", "text": text} for i, text in enumerate(DOCUMENTS)]  # fmt: skip
    rows[-1].pop("id")  # its number, without the blank lines
    (tmp_path / "docs.json").write_text("".join(json.dumps(row) + "\n\n" for row in rows) + " \n")
    queries = [{"_id": f"q{i}", "sentence": text} for i, text in enumerate(QUERIES)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    found = search(f"--queries={tmp_path / 'q.jsonl'}", "--json", corpus="docs.json")
    order, _ = expected(model, 10)
    assert [one["id"] for one in found] == ["q0", "q1", "q2"]
    ids = [f"d{i}" if i < 9 else str(i) for i in range(len(DOCUMENTS))]
    for row, one in enumerate(found):
        assert [(x["id"], x["text"]) for x in one["results"]] == [(ids[i], DOCUMENTS[i]) for i in order[row]]


@pytest.mark.long
def test_another_model_orders_the_candidates_again(search, tmp_path, vocabulary):  # noqa: F811
    run = make_run(tmp_path / "ranker", vocabulary, "regression", text_a="a", text_b="b", label="c")
    found = search("--query=a red cat", "--json", "--top=5", f"--rerank={run}")[0]["results"]
    predicted = Predictor(str(run)).predict_rows([f"a red cat\t{text}" for text in DOCUMENTS])
    scores = {text: one["prediction"] for text, one in zip(DOCUMENTS, predicted, strict=True)}
    np.testing.assert_allclose([x["score"] for x in found], sorted(scores.values())[:-6:-1], atol=1e-5)
    np.testing.assert_allclose([x["score"] for x in found], [scores[x["text"]] for x in found], atol=1e-5)


@pytest.mark.parametrize("unit", [True, False], ids=["pretrained", "inner product"])
def test_models_without_and_with_settings_of_sentence_embeddings(search, model, tmp_path, unit):
    sentence = None if unit else SentenceVectors("mean", False)
    work_directory.FORMAT.write(model.replace(sentence=sentence), tmp_path / "other")
    found = search(f"--model={tmp_path / 'other'}", "--query=one", "--json", "--top=1000")[0]["results"]
    embedder = Embedder(model.replace(sentence=sentence), normalize=unit)
    scores = embedder.embed(DOCUMENTS) @ embedder.embed(["one"])[0]
    assert [one["text"] for one in found] == [DOCUMENTS[i] for i in np.argsort(-scores, kind="stable")]
    np.testing.assert_allclose([one["score"] for one in found], np.sort(scores)[::-1], rtol=1e-5)


def test_an_index_is_searched_with_the_model_in_another_format(search, checkpoint, tmp_path):
    expected, folder = search("--query=one", "--json"), str(tmp_path / "folder")
    conversion.convert(str(checkpoint), folder, "huggingface", log=lambda line: None)
    assert search("--query=one", f"--model={folder}", "--json", corpus="") == expected


def test_an_interrupted_index_is_made_anew(search, tmp_path, monkeypatch):
    def fail(*unused):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(index.json_files, "write", fail)
        search("--query=one", code=130)
    assert not (tmp_path / "index" / "index.json").exists()
    # As SIGKILL leaves them, on another machine.
    for name in ("vectors.npy", "texts.jsonl"):
        (tmp_path / "index" / f"{name}.tmp-host-1-2-abcdef").write_text("a")
    search("--query=one", code=2)
    assert len(search("--query=one", "--json", "--overwrite")[0]["results"]) == 10


def test_an_index_is_searched_only_as_it_was_made(search, tmp_path, model, checkpoint):
    """Another model, other weights, settings of vectors, prompt or corpus are errors that say what to do."""
    expected = search("--query=one", "--json")
    others = {
        "moved": ({}, ""),
        "other": ({"params": {name: x * 1.5 for name, x in model.params.items()}}, "in weights;"),
        "cls": ({"sentence": dataclasses.replace(model.sentence, pooling="cls")}, "in pooling;"),
    }
    for name, (changes, message) in others.items():
        work_directory.FORMAT.write(model.replace(**changes), tmp_path / name)
        flags = ["--query=one", f"--model={tmp_path / name}"]
        if message:
            error = search(*flags, corpus="", code=2).err
            assert message in error and str(checkpoint) in error
        else:
            assert search(*flags, "--json", corpus="") == expected
    (tmp_path / "other.txt").write_text("a cat\n")
    assert "--overwrite" in search("--query=one", corpus="other.txt", code=2).err
    path = tmp_path / "docs.txt"
    content = path.read_text()
    os.utime(path, (1, 1))
    assert search("--query=one", "--json") == expected  # the same content, as of a copy
    path.write_text(content.replace("small green dog", "small green dig"))
    assert "differs from the corpus" in search("--query=one", code=2).err
