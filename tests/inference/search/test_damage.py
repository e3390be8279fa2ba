"""No damage of an index is silent: it is an error of one line that names the file."""

import json
import random
import types

import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.inference.search import index
from bert_jax.inference.search.corpus import Document

QUERIES = np.eye(8, dtype=np.float32)


class Embedder:
    """Gives each text a vector of random numbers."""

    width = 8

    def stream(self, texts, progress, prefix=""):
        rng = np.random.default_rng(0)
        for _ in texts:
            yield types.SimpleNamespace(values=rng.normal(size=8).astype(np.float32))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory with an index of 64 documents, and the content of its files by name."""
    pytest.importorskip("usearch")
    folder = tmp_path_factory.mktemp("index")
    documents = [Document(str(number), f"text {number}") for number in range(64)]
    index.make(str(folder), documents, Embedder(), "model", "-", graph=True, log=lambda line: None)
    return folder, {path.name: path.read_bytes() for path in folder.iterdir()}


def results(folder):
    """Returns the results of both kinds of search."""
    return [[*index.Index(str(folder), approximate).search(QUERIES, 5)] for approximate in (False, True)]


def damaged(content, rng):
    """Yields a content with one bit flipped, cut, extended, and with a block of zeros."""
    for _ in range(30):
        place = rng.randrange(len(content))
        yield content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
    yield from (content[: len(content) // 2], b"", content + b"\0", bytes(len(content)))


@pytest.mark.parametrize("name", [index.INDEX, index.VECTORS, index.OFFSETS, index.TEXTS, index.GRAPH])
def test_no_damaged_file_is_read(made, name):
    folder, contents = made
    expected, rng = results(folder), random.Random(0)
    try:
        for content in damaged(contents[name], rng):
            (folder / name).write_bytes(content)
            try:
                found = results(folder)
            except UserError as error:
                assert name in str(error) and "\n" not in str(error)
            else:
                assert name == index.INDEX and found == expected  # such as another kind of whitespace
    finally:
        (folder / name).write_bytes(contents[name])
    assert results(folder) == expected


@pytest.fixture
def earlier(made, tmp_path):
    """The same index without digests, as earlier versions wrote it."""
    for name, content in made[1].items():
        (tmp_path / name).write_bytes(content)
    settings = json.loads(made[1][index.INDEX])
    del settings["digests"], settings["digest"]
    (tmp_path / index.INDEX).write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("name", [index.VECTORS, index.OFFSETS])
def test_damaged_headers_of_an_index_without_digests(earlier, name):
    assert len([*index.Index(str(earlier)).search(QUERIES, 5)]) == len(QUERIES)
    rng, whole = random.Random(0), (earlier / name).read_bytes()
    for place in range(128):
        content = bytearray(whole)
        content[place] = rng.choice(b"\0\xff('{,9")
        (earlier / name).write_bytes(content)
        try:
            list(index.Index(str(earlier)).search(QUERIES, 5))
        except UserError as error:
            assert "\n" not in str(error)


def test_a_damaged_line_of_an_index_without_digests(earlier):
    texts = earlier / index.TEXTS
    for bad in (b'"txet"', b"\0" * 6):
        texts.write_bytes(texts.read_bytes().replace(b'"text"', bad))
        with pytest.raises(UserError, match=index.TEXTS):
            list(index.Index(str(earlier)).search(QUERIES, 1))


def test_the_graph_of_an_index_without_digests_is_not_searched(earlier):
    with pytest.raises(UserError, match="make the index anew"):
        index.Index(str(earlier), approximate=True)
