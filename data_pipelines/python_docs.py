"""Makes a small English corpus from the documentation topics and docstrings that CPython contains.

There is one document for each topic of `pydoc_data` (what `help("with")` shows) and one for each module of
the standard library (its docstrings, read from the sources). Headings, code, doctests, signatures, tables and
markup are dropped, and so is a sentence that occurred before. The corpus is about 1 MB.
"""

import ast
import dataclasses
import inspect
import itertools
import os
import re
import sysconfig
from collections.abc import Iterator, Sequence
from pydoc_data import topics

from bert_jax.io import atomic
from data_pipelines.sentences import split_paragraph

_MIN_SENTENCES = 3  # a shorter document has no two segments to pair
_MAX_WORDS = 100
_SKIPPED_FOLDERS = frozenset(
    "test tests idle_test idlelib lib2to3 turtledemo site-packages dist-packages __pycache__ _bundled "
    "pydoc_data __phello__ encodings".split()
)


@dataclasses.dataclass(frozen=True)
class Document:
    """The sentences of a topic or a module."""

    package: str  # the top-level package or module to which a module belongs; "" for topics
    sentences: tuple[str, ...]


def documents() -> list[Document]:
    """Returns the topics and then the modules, sorted by name."""
    texts = [("", [text]) for _, text in sorted(topics.topics.items())]
    texts += [(name.partition(".")[0], list(_docstrings(path))) for name, path in sorted(_module_files())]
    seen: set[str] = set()
    kept = []
    for package, parts in texts:
        sentences = []
        for sentence in itertools.chain.from_iterable(map(prose, parts)):
            if sentence.lower() not in seen:
                seen.add(sentence.lower())
                sentences.append(sentence)
        if len(sentences) >= _MIN_SENTENCES:
            kept.append(Document(package, tuple(sentences)))
    return kept


def write_corpus(directory: str | os.PathLike, corpus: Sequence[Document] | None = None) -> list[str]:
    """Writes topics.txt and modules.txt in the format `text`, and returns their paths."""
    corpus = documents() if corpus is None else corpus
    os.makedirs(directory, exist_ok=True)
    paths = []
    for name, of_modules in (("topics.txt", False), ("modules.txt", True)):
        lines = [f"{one}\n" for d in corpus if bool(d.package) == of_modules for one in (*d.sentences, "")]
        if lines:
            paths.append(os.path.join(directory, name))
            atomic.write_file(paths[-1], "".join(lines).encode("utf-8", "replace"))
    return paths


def _module_files() -> Iterator[tuple[str, str]]:
    """Yields (dotted name, path) of the modules of the standard library whose sources are installed."""
    root = sysconfig.get_path("stdlib")
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and f.isidentifier())
        package = os.path.relpath(folder, root).split(os.sep) if folder != root else []
        for name in sorted(names):
            if name.endswith(".py") and name[:-3].isidentifier():
                parts = [*package, name[:-3]]
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), os.path.join(folder, name)


def _docstrings(path: str) -> Iterator[str]:
    """Yields the docstrings of a source file in order; nothing if it cannot be parsed."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    # Only blocks contain definitions; most of a tree is expressions, which need not be visited.
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
_LABEL = re.compile(r"\*{0,2}\w+(?: \([^)]*\))?: +(?=\S)")  # the label of a parameter, or "Note: "
_HEADING = re.compile(r"[\w ]{1,40}:$")
_UNDERLINE = re.compile(r"([=*~^\"'#-])\1{2,}\s*$")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)?(?:\s*->.*)?$")
# Two spaces remain where markup without text was removed.
_CODE_MARKS = ("::", ">>>", "...", "==", "\\", "|", "{", "}", "<", ">", "@", "#", "$", "http", "  ")
_PLAIN_WORD = re.compile(
    r"[\"'“‘(]*(?:[A-Za-z]+(?:[-'’/][A-Za-z]+)*|\d+(?:[.,]\d+)?|i\.e|e\.g)[.,;:!?)\"'”’]*$"
)


def prose(text: str) -> list[str]:
    """Returns the sentences of a docstring or a documentation page that are English prose.

    A sentence starts with a capital letter, ends with a punctuation mark, and has 4 to 100 words, of which at
    least 80% look like English words or numbers. This separates prose from code.
    """
    sentences = []
    for paragraph in _paragraphs(inspect.cleandoc(text)):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences += [sentence for sentence in split_paragraph(paragraph) if _is_sentence(sentence)]
    return sentences


def _paragraphs(text: str) -> Iterator[str]:
    """Yields the blocks between blank lines and bullets, without doctests, headings and signatures."""
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
            block = block[:-1]  # removes the heading above the underline
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
