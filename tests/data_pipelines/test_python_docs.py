"""The corpus that every CPython carries: English only, without repeats, the same on every run."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from bert_jax.errors import UserError
from data_pipelines import python_docs, readers

ROOT = Path(__file__).resolve().parents[2]
DOCSTRING = """
Open a file(s) and *return* a stream.

open(path, mode='r') -> stream

The ``mode`` is a string that says how the file
is opened. See :func:`~io.open` for `more about it`_ [1]_.

>>> open("name")
<stream>
This is output of the example above.

Args:
  path: A path-like object that names the file.
  mode (str): How to open the file, by default for reading text.

Notes
-----
* The first item is a sentence of its own
  over two lines.
* Items without an end are no sentences

   x = open(name)[0].read() + other.value

Some code::

    for line in file: print(line, end='')

+-----+-----+
| a   | b   |
+-----+-----+

"Dr. Smith wrote it." It works in Python 3, i.e. today. Short one.
"""


@pytest.fixture(scope="module")
def corpus():
    return python_docs.documents()


def test_prose_of_a_docstring():
    assert python_docs.prose(DOCSTRING) == [
        "Open a file(s) and return a stream.",
        "The mode is a string that says how the file is opened.",
        "See io.open for more about it.",
        "The first item is a sentence of its own over two lines.",
        '"Dr. Smith wrote it."',
        "It works in Python 3, i.e. today.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short.",
        "lower case does not begin a sentence here.",
        "No mark at the end of this",
        "X = [a[0], b(1), c.d] + e_f(g) * 3.",
        "The {name} of this is a template for you.",
        "See https://example.com/page for what it is.",
        "word " * 120 + ".",
        "The \x01 character is not one that is printed.",
        ">>> The prompt is followed by something that looks like words.",
        "A Title Of Some Page Here.\n==========================",
    ],
)
def test_what_is_no_prose(text):
    assert python_docs.prose(text) == []


@pytest.mark.long
def test_the_corpus_is_large_enough(corpus):
    words = sum(len(sentence.split()) for document in corpus for sentence in document.sentences)
    sources = [document.source for document in corpus]
    assert words > 150_000 and sources.count("module") > 200
    assert sources.count("topic") > 40
    assert len({document.package for document in corpus}) > 100


@pytest.mark.long
def test_documents(corpus):
    assert len({document.key for document in corpus}) == len(corpus)
    sentences = [sentence.lower() for document in corpus for sentence in document.sentences]
    assert len(set(sentences)) == len(sentences)
    for document in corpus:
        assert len(document.sentences) >= 3
        assert document.key.split(":")[0] == document.source
        if document.source == "module":
            assert document.package == document.key.split(":")[1].split(".")[0]
    for name in ("test", "idlelib", "lib2to3", "pydoc_data", "numpy", "pip"):
        assert not [d.key for d in corpus if d.package == name]


def test_sentences_are_english(corpus):
    for document in corpus:
        for sentence in document.sentences:
            assert sentence[-1] in '.!?)"' and 4 <= len(sentence.split()) <= 100
            assert not re.search(r">>>|::|[{}|<>]|\s\s|\n", sentence), sentence


@pytest.mark.long
def test_no_module_is_imported():
    code = (
        "import sys; from data_pipelines import python_docs; before = set(sys.modules);"
        "python_docs.documents(); print(*set(sys.modules) - before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    # The splitter of sentences is imported at its first use.
    imported = {name for name in result.stdout.split() if not name.startswith(("_sysconfig", "sentencex"))}
    assert imported <= {"pydoc_data", "pydoc_data.topics"}
    assert not result.stderr


@pytest.mark.long
def test_it_is_the_same_on_every_run_and_without_docstrings(corpus, tmp_path):
    python_docs.write_corpus(tmp_path / "a", corpus)
    code = f"from data_pipelines import python_docs; python_docs.write_corpus({str(tmp_path / 'b')!r})"
    subprocess.run([sys.executable, "-OO", "-c", code], cwd=ROOT, check=True)
    for name in ("topics.txt", "modules.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_files_are_read_back(corpus, tmp_path):
    written = python_docs.write_corpus(tmp_path / "new" / "corpus", corpus)
    assert [Path(path).name for path in written.paths] == ["topics.txt", "modules.txt"]
    assert written.documents == len(corpus)
    assert written.bytes == sum(Path(path).stat().st_size for path in written.paths)
    ranges = readers.split_ranges(written.paths, 100_000)
    read = [document.passages for range_ in ranges for document in readers.read_documents(range_, "text")]
    assert read == [document.sentences for document in corpus]
    assert sum(map(len, read)) == written.sentences


def test_without_topics(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "no pydoc_data.topics" in python_docs.missing()
    monkeypatch.setattr(
        python_docs, "_modules", lambda: iter([document("module:a", "A sentence of {} words.")])
    )
    assert [d.key for d in python_docs.documents()] == ["module:a"]
    written = python_docs.write_corpus(tmp_path)
    assert [Path(path).name for path in written.paths] == ["modules.txt"]


def test_without_sources(monkeypatch, tmp_path):
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path))
    assert "no sources" in python_docs.missing()
    assert {d.source for d in python_docs.documents()} == {"topic"}
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", types.ModuleType("empty"))
    with pytest.raises(UserError, match="carries neither pydoc_data nor the sources"):
        python_docs.documents()


def document(key, sentence):
    numbers = ("four", "five", "nine")
    sentences = tuple(sentence.format(number) for number in numbers)
    return python_docs.Document(key, key.split(":")[0], "", sentences)


def test_repeats_are_left_out(monkeypatch):
    monkeypatch.setattr(
        python_docs, "_topics", lambda: iter([document("topic:a", "A sentence of {} words.")])
    )
    both = [document("module:a", "A Sentence of {} words."), document("module:b", "Another one of {} words.")]
    monkeypatch.setattr(python_docs, "_modules", lambda: iter(both))
    assert [d.key for d in python_docs.documents()] == ["topic:a", "module:b"]


def test_sources_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path))
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "null.py").write_bytes(b"\x00")
    (tmp_path / "latin.py").write_bytes(
        "# -*- coding: latin-1 -*-\n'''Ein Café ist das hier.'''".encode("latin-1")
    )
    (tmp_path / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_text("'''This one is left out.'''")
    (tmp_path / "package").mkdir()
    source = "'''The first one of three.'''\nif True:\n    class A:\n        '''The second one of three.'''\n"
    source += "        async def f():\n            '''The third one of three.'''\n"
    (tmp_path / "package" / "__init__.py").write_text(source)
    found = {d.key: d.sentences for d in python_docs._modules() if d.sentences}
    assert found == {
        "module:latin": ("Ein Café ist das hier.",),
        "module:package": ("The first one of three.", "The second one of three.", "The third one of three."),
    }
