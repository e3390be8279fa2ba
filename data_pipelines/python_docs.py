"""A small English corpus that every CPython carries: the text of its documentation topics and docstrings.

One document a topic of `pydoc_data` (what `help("with")` shows) and one a module of the standard library
(its docstrings, read from the sources: no module is imported). Headings, code, doctests, signatures, tables
and markup are dropped, sentences split, and a sentence that has occurred before is left out, so that no
document repeats another. The corpus is about 1 MB; it depends on the Python version, and on nothing else.
"""

import ast
import dataclasses
import importlib
import inspect
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence

from bert_jax.errors import UserError
from bert_jax.io import atomic
from data_pipelines.sentences import split_paragraph

TOPIC, MODULE = "topic", "module"

_MIN_SENTENCES = 3  # a document of fewer has no two segments to pair
_MAX_WORDS = 100
_SKIPPED_FOLDERS = frozenset(
    "test tests idle_test idlelib lib2to3 turtledemo site-packages dist-packages __pycache__ _bundled "
    "pydoc_data __phello__ encodings".split()
)


@dataclasses.dataclass(frozen=True)
class Document:
    """The sentences of a topic or a module.

    Attributes:
        key: Unique: "topic:with" or "module:email.message".
        source: TOPIC or MODULE.
        package: The top-level package or module that a module belongs to; "" for topics.
        sentences: Its sentences in order, three or more.
    """

    key: str
    source: str
    package: str
    sentences: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Written:
    """What `write_corpus` wrote: the files, and the size of the corpus."""

    paths: tuple[str, ...]
    documents: int
    sentences: int
    words: int
    bytes: int


def documents() -> list[Document]:
    """The corpus: topics by name, then modules by name. The same list on every run with one Python.

    Raises:
        UserError: This Python carries neither its topics nor the sources of its standard library.
    """
    return _unique([*_topics(), *_modules()])


def write_corpus(directory: str | os.PathLike, corpus: Sequence[Document] | None = None) -> Written:
    """Writes the corpus in the format `text`: a sentence a line, a blank line after each document.

    Args:
        directory: Gets topics.txt and modules.txt, or one of them if the Python lacks the other; made when
            missing.
        corpus: Documents to write; `documents()` if None.

    Raises:
        UserError: As `documents`.
        OSError: The files can't be written.
    """
    corpus = documents() if corpus is None else corpus
    os.makedirs(directory, exist_ok=True)
    paths = []
    size = 0
    for source in (TOPIC, MODULE):
        lines = [f"{sentence}\n" for d in corpus if d.source == source for sentence in (*d.sentences, "")]
        if lines:
            paths.append(os.path.join(directory, f"{source}s.txt"))
            content = "".join(lines).encode("utf-8", "replace")
            atomic.write_file(paths[-1], content)
            size += len(content)
    found = [sentence for document in corpus for sentence in document.sentences]
    words = sum(len(sentence.split()) for sentence in found)
    return Written(tuple(paths), len(corpus), len(found), words, size)


def missing() -> str | None:
    """One line on what this Python lacks of the corpus, or None."""
    if not _topic_texts():
        return (
            "this Python has no pydoc_data.topics (Debian: libpython3-stdlib); the corpus is docstrings only"
        )
    if next(_module_files(), None) is None:
        return (
            "this Python has no sources of its standard library; the corpus is the documentation topics only"
        )
    return None


def _unique(candidates: Sequence[Document]) -> list[Document]:
    seen: set[str] = set()
    kept = []
    for document in candidates:
        new = []
        for sentence in document.sentences:
            if sentence.lower() not in seen:
                seen.add(sentence.lower())
                new.append(sentence)
        if len(new) >= _MIN_SENTENCES:
            kept.append(dataclasses.replace(document, sentences=tuple(new)))
    if not kept:
        raise UserError(
            "this Python carries neither pydoc_data nor the sources of its standard library, which are the "
            "corpus; use one from python.org, pyenv or conda, or the distribution's full package"
        )
    return kept


def _topic_texts() -> dict[str, str]:
    try:
        return dict(importlib.import_module("pydoc_data.topics").topics)
    except (ImportError, AttributeError):
        return {}


def _topics() -> Iterator[Document]:
    for name, text in sorted(_topic_texts().items()):
        yield Document(f"{TOPIC}:{name}", TOPIC, "", tuple(prose(text)))


def _module_files() -> Iterator[tuple[str, str]]:
    """(dotted name, path) of the modules of the standard library that are there as sources."""
    root = sysconfig.get_path("stdlib")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and f.isidentifier())
        package = os.path.relpath(folder, root).split(os.sep) if folder != root else []
        for name in sorted(names):
            if name.endswith(".py") and name[:-3].isidentifier():
                parts = [*package, name[:-3]]
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), os.path.join(folder, name)


def _modules() -> Iterator[Document]:
    for name, path in sorted(_module_files()):
        sentences = [sentence for text in _docstrings(path) for sentence in prose(text)]
        yield Document(f"{MODULE}:{name}", MODULE, name.partition(".")[0], tuple(sentences))


def _docstrings(path: str) -> Iterator[str]:
    """The docstrings of a source file, in its order; none when it can't be parsed."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    # Only blocks hold definitions: most of a tree is expressions, and needn't be walked.
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
        blocks = [getattr(node, field, ()) for field in ("body", "orelse", "handlers", "finalbody")]
        pending += [child for block in reversed(blocks) for child in reversed(block)]


_ROLE = re.compile(r":[\w:+-]+:`~?([^`<]*?)\s*(?:<[^`>]*>)?`")
_MARKUP = (
    (_ROLE, r"\1"),
    (re.compile(r"``([^`]+)``"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*(?:<[^`>]*>)?`_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*\s][^*]*)\*\*"), r"\1"),
    (re.compile(r"\*([^*\s][^*]*)\*"), r"\1"),
    (re.compile(r"(?<=\w)\s*\[\d+\]_?"), ""),
)
_BULLET = re.compile(r"(?:[*+•-]|\(?\d{1,2}[.)]|\(?[a-z][.)]|\(?[ivx]{1,4}[.)])\s+")
_LABEL = re.compile(r"\*{0,2}\w+(?: \([^)]*\))?: +(?=\S)")  # of a parameter, or "Note: "
_HEADING = re.compile(r"[\w ]{1,40}:$")
_UNDERLINE = re.compile(r"([=*~^\"'#-])\1{2,}\s*$")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?:\s*->.*)?$")
# Two blanks are where markup without a text was.
_CODE_MARKS = ("::", ">>>", "...", "==", "\\", "|", "{", "}", "<", ">", "@", "#", "$", "http", "  ")
_PLAIN_WORD = re.compile(
    r"[\"'“‘(]*(?:[A-Za-z]+(?:[-'’/][A-Za-z]+)*|\d+(?:[.,]\d+)?|i\.e|e\.g)[.,;:!?)\"'”’]*$"
)


def prose(text: str) -> list[str]:
    """The sentences of a docstring or of a page of documentation, without what is not English prose.

    Paragraphs are told from code by what a sentence is: it starts with a capital, ends with a mark, has
    four to a hundred words, and nearly all of them are words of letters.
    """
    sentences = []
    for paragraph in _paragraphs(inspect.cleandoc(text)):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences += [sentence for sentence in split_paragraph(paragraph) if _is_sentence(sentence)]
    return sentences


def _paragraphs(text: str) -> Iterator[str]:
    """Blocks between blank lines and bullets, each as one line; no doctests, headings or signatures."""
    block: list[str] = []
    doctest = False
    for line in [*text.expandtabs().split("\n"), ""]:
        line = line.rstrip()
        stripped = line.lstrip()
        if not stripped:
            doctest = False
        elif stripped.startswith(">>>"):
            doctest = True
        bullet = None if doctest else _BULLET.match(stripped)
        if _UNDERLINE.fullmatch(stripped):
            block = block[:-1]  # the heading above it
            stripped = ""
        if _HEADING.fullmatch(stripped):
            stripped = ""
        if not stripped or doctest or bullet or _LABEL.match(stripped):
            if block:
                yield " ".join(" ".join(block).split())
            block = []
        if not stripped or doctest:
            continue
        if bullet:
            stripped = stripped[bullet.end() :]
        if block or not _SIGNATURE.fullmatch(stripped):
            block.append(stripped)


def _is_sentence(sentence: str) -> bool:
    words = sentence.split()
    start = sentence.lstrip("\"'“‘(")[:1]
    if (
        not 4 <= len(words) <= _MAX_WORDS
        or not start.isupper()
        or not sentence.endswith((".", "!", "?", '."', ".)"))
    ):
        return False
    if not sentence.isprintable() or any(mark in sentence for mark in _CODE_MARKS):
        return False
    return sum(bool(_PLAIN_WORD.match(word)) for word in words) >= 0.8 * len(words)
