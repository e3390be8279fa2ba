"""An index stays as it was opened."""

import types

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.inference.search import corpus, index
from bert_jax.inference.search.corpus import Document


class Embedder:
    """Gives texts the rows of a matrix, by their last character."""

    width = 8

    def stream(self, texts, progress, prefix=""):
        for text in texts:
            yield types.SimpleNamespace(values=np.eye(8, dtype=np.float32)[int(text[-1])])


def make(directory, texts, graph):
    documents = [Document(str(number), text) for number, text in enumerate(texts)]
    return index.make(str(directory), documents, Embedder(), "model", "-", graph=graph, log=lambda line: None)


@pytest.mark.parametrize("graph", [False, True], ids=["exact", "graph"])
def test_an_open_index_is_searched_as_it_was_while_it_is_made_anew(tmp_path, graph):
    if graph:
        pytest.importorskip("usearch")
    make(tmp_path / "index", [f"old {number}" for number in range(8)], graph)
    opened = index.Index(str(tmp_path / "index"), approximate=graph)
    new = make(tmp_path / "index", [f"new and longer {7 - number}" for number in range(5)], graph)
    queries = np.eye(8, dtype=np.float32)
    for found, begin in ((opened, "old"), (new, "new and longer")):
        for number, (first, *_) in enumerate(found.search(queries[3:], 3), 3):
            assert (first.document.text, first.score) == (f"{begin} {number}", 1.0)


def test_what_is_appended_to_the_corpus_meanwhile_is_not_counted_as_indexed(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("text 0\ntext 1\n")

    class Slow(Embedder):
        def stream(self, texts, progress, prefix=""):
            texts = list(texts)
            with path.open("a") as file:
                file.write("text 2\n")
            return super().stream(texts, progress)

    made = index.make(
        str(tmp_path / "index"), corpus.read(str(path)), Slow(), "model", str(path), log=lambda line: None
    )
    assert (len(made), made.settings["bytes"], index.corpus_bytes(str(path))) == (2, 14, 21)


@pytest.mark.parametrize("finished", [False, True], ids=["still being made", "made"])
def test_an_index_that_is_replaced_while_it_is_opened_is_refused(tmp_path, monkeypatch, finished):
    make(tmp_path / "index", [f"old {number}" for number in range(8)], False)
    mapped = index.Index._mapped

    def replacing(self, name, read):
        found = mapped(self, name, read)
        if name == index.TEXTS:  # the last file
            monkeypatch.undo()
            make(tmp_path / "index", [f"new {number}" for number in range(5)], False)
            if not finished:
                (tmp_path / "index" / index.INDEX).unlink()
        return found

    monkeypatch.setattr(index.Index, "_mapped", replacing)
    with pytest.raises(UserError, match="replaced while it was being opened; try again"):
        index.Index(str(tmp_path / "index"))


def test_the_first_document_that_differs(tmp_path):
    texts = ["text 0", "text 1", "é 2"]
    made = make(tmp_path / "index", texts, False)

    def difference(*texts):
        return made.first_difference(Document(str(i), text) for i, text in enumerate(texts))

    assert difference(*texts) is None
    assert [difference(), difference("text 0"), difference("text 0", "1"), difference(*texts, "3")] == [
        0,
        1,
        1,
        3,
    ]
    assert made.first_difference([Document("a", "text 0")]) == 0
