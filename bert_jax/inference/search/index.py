"""A corpus with a vector for each document, in a directory, which is searched any number of times."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_jax.data import verification
from bert_jax.errors import UserError, optional_imports
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.search import fingerprint
from bert_jax.inference.search.corpus import Document
from bert_jax.inference.search.nearest import nearest
from bert_jax.io import atomic, files, json_files
from bert_jax.io.wording import counted

with optional_imports("search"):
    from usearch import index as usearch

INDEX, VECTORS, TEXTS, OFFSETS, GRAPH = (
    "index.json",
    "vectors.npy",
    "texts.jsonl",
    "offsets.npy",
    "graph.usearch",
)
_SCHEMA = {
    "version": int,
    "checkpoint": str,
    "corpus": str,
    "bytes": int,
    "documents": int,
    "prefix": str,
    "field?": str,
    "modified?": int,
    "digests?": {str: int},
    **fingerprint.SCHEMA,
}
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Result:
    """A document that was found.

    Attributes:
        document: the document.
        score: the inner product of the vectors, which is their cosine if they have length 1; or the score of
            a model that read both texts.
    """

    document: Document
    score: float


ANEW = "make the index anew, with --corpus and --overwrite"


class Index:
    """An index in a directory, whose files are mapped into memory.

    They are mapped at once, so that the index stays as it is if `make` replaces them meanwhile.

    Args:
        directory: a local directory that `make` has filled.
        approximate: whether to search with the graph, which is much faster in large corpora, and may miss
            some documents.

    Attributes:
        vectors: float32 [N, H], one of each document.

    Raises:
        UserError: there is no index, a file of it is missing or differs from its digest, it was made without
            a graph, or `make` replaced it meanwhile. An index of an earlier version has no digests: its
            structure is checked, and its graph is not searched.
    """

    def __init__(self, directory: str, approximate: bool = False):
        self.directory = directory
        self.settings = self._read_settings()
        if self.settings["version"] != _VERSION:
            raise UserError(f"{directory}: an index of another version of bert-jax; make it anew")
        self._digests = self.settings.get("digests", {})
        self.vectors, self._offsets = (
            self._mapped(name, functools.partial(np.load, mmap_mode="r")) for name in (VECTORS, OFFSETS)
        )
        count = self.settings["documents"]
        if self.vectors.shape[:-1] != (count,) or self._offsets.shape != (count + 1,):
            raise UserError(f"{directory}: {VECTORS} and {OFFSETS} do not belong to {INDEX}; make it anew")
        self._texts = self._mapped(TEXTS, functools.partial(np.memmap, mode="r"))
        if len(self._texts) != self._offsets[-1]:
            raise UserError(f"{os.path.join(directory, TEXTS)}: not that of {INDEX}; {ANEW}")
        self._graph: Any = None
        if approximate:
            if GRAPH not in self._digests:  # to search a damaged graph may end the process
                raise UserError(f"{directory}: made without --approximate, or by an earlier version; {ANEW}")
            self._graph = self._mapped(GRAPH, functools.partial(usearch.Index.restore, view=True))
        # `make` removes the settings before it replaces the other files.
        if not files.exists(os.path.join(directory, INDEX)) or self._read_settings() != self.settings:
            raise UserError(f"{directory}: the index was replaced while it was being opened; try again")

    def _read_settings(self) -> dict[str, Any]:
        path = os.path.join(self.directory, INDEX)
        return json_files.unsealed(json_files.read(path, _SCHEMA), path)

    def _mapped(self, name: str, read: Callable[[str], Any]) -> Any:
        path = os.path.join(self.directory, name)
        try:
            if not self._digests or verification.file_digest(path) == self._digests[name]:
                return read(path)
        except Exception:  # numpy and usearch raise many kinds
            pass
        raise UserError(f"{path}: missing or damaged; {ANEW}")

    def __len__(self) -> int:
        return len(self.vectors)

    def document(self, number: int) -> Document:
        """Returns the document with a number from 0. Raises a UserError if its line is damaged."""
        begin, end = self._offsets[number : number + 2]
        try:
            return Document(**json.loads(self._texts[begin:end].tobytes()))
        except (ValueError, TypeError):
            raise UserError(
                f"{os.path.join(self.directory, TEXTS)}: the line of document {number} is damaged; {ANEW}"
            ) from None

    def first_difference(self, documents: Iterable[Document]) -> int | None:
        """Returns the number of the first document that is not that of the index; None without one.

        Args:
            documents: all documents of a corpus. One that the index has beyond them differs, too.
        """
        number = 0
        for number, document in enumerate(documents, 1):
            begin, end = self._offsets[number - 1 : number + 1] if number <= len(self) else (0, 0)
            if self._texts[begin:end].tobytes() != _line(document):
                return number - 1
        return None if number == len(self) else number

    def search(self, queries: np.ndarray, most: int) -> Iterator[list[Result]]:
        """Yields the documents with the largest inner products for each query, the largest first.

        Args:
            queries: float32 [Q, H].
            most: number of documents to find.
        """
        numbers, scores = (
            nearest(queries, self.vectors, most) if self._graph is None else self._approximate(queries, most)
        )
        for of_query, values in zip(numbers.tolist(), scores.tolist(), strict=True):
            yield [
                Result(self.document(n), score) for n, score in zip(of_query, values, strict=True) if n >= 0
            ]

    def _approximate(self, queries: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
        numbers = np.full((len(queries), min(most, len(self))), -1, np.int64)
        scores = np.full(numbers.shape, -np.inf, np.float32)
        for row, query in enumerate(np.ascontiguousarray(queries, np.float32)):
            found = np.asarray(self._graph.search(query, most).keys, np.int64)
            exact = np.asarray(self.vectors[found], np.float32) @ query
            order = np.lexsort((found, -exact))
            numbers[row, : len(found)], scores[row, : len(found)] = found[order], exact[order]
        return numbers, scores


@contextlib.contextmanager
def _made(directory: str) -> Iterator[None]:
    """Creates a directory; if the block fails, removes it again, unless it was there or has files."""
    is_new = not files.exists(directory)
    files.make_directory(directory)
    try:
        yield
    except BaseException:
        if is_new and not files.names(directory):
            os.rmdir(directory)
        raise


def make(
    directory: str,
    documents: Iterable[Document],
    embedder: Embedder,
    checkpoint: str,
    corpus: str,
    *,
    field: str = "text",
    prefix: str = "",
    made_by: Mapping[str, Any] = types.MappingProxyType({}),
    graph: bool = False,
    progress: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = print,
) -> Index:
    """Embeds a corpus, in bounded memory, and returns its index.

    Args:
        directory: a local directory, created if it does not exist. `INDEX` is written last, so that an
            interrupted index is none. An index that is there stays until all vectors of the new one are made.
        documents: the corpus.
        embedder: makes the vectors.
        checkpoint: the absolute path or URL of the model.
        corpus: that of the corpus; "-" for standard input.
        field: the field of the texts in it.
        prefix: put before each document.
        made_by: the `fingerprint` of the model; empty if it is not known.
        graph: whether to make a graph for approximate search, too.
        progress: called with the number of documents that have been embedded.
        log: called with one line at the end.

    Raises:
        UserError: the corpus has no document.
    """
    # Before it is read, so that a change meanwhile is noticed later.
    size, modified = corpus_bytes(corpus), corpus_modified(corpus)
    documents = iter(documents)
    first = next(documents, None)  # a corpus that cannot be read is found before anything is written
    if first is None:
        raise UserError(f"{corpus} has no documents; expected one text per line, or .jsonl")
    began, offsets, count = time.monotonic(), [0], 0

    def texts(out):
        for document in itertools.chain([first], documents):
            line = _line(document)
            out.write(line)
            offsets.append(offsets[-1] + len(line))
            yield document.text

    header = dict(descr="<f4", fortran_order=False)
    with (
        _made(directory),
        atomic.replace_file(os.path.join(directory, TEXTS)) as out,
        atomic.replace_file(os.path.join(directory, VECTORS)) as vectors,
    ):
        np.lib.format.write_array_header_1_0(vectors, header | dict(shape=(count, embedder.width)))
        for features in embedder.stream(texts(out), progress, prefix=prefix):
            vectors.write(features.values.astype("<f4", copy=False).tobytes())
            count += 1
        vectors.seek(0)
        np.lib.format.write_array_header_1_0(vectors, header | dict(shape=(count, embedder.width)))
        files.remove(os.path.join(directory, INDEX), missing_ok=True)
        files.remove(os.path.join(directory, GRAPH), missing_ok=True)
    with atomic.replace_file(os.path.join(directory, OFFSETS)) as file:
        np.save(file, np.asarray(offsets, np.int64))
    if graph:
        _make_graph(directory, embedder.width)
    names = (VECTORS, TEXTS, OFFSETS, GRAPH)[: 4 if graph else 3]
    settings = {
        "version": _VERSION,
        "checkpoint": checkpoint,
        "corpus": corpus,
        "bytes": size,
        "documents": count,
        "prefix": prefix,
        "field": field,
        "modified": modified,
        "digests": {name: verification.file_digest(os.path.join(directory, name)) for name in names},
        **made_by,
    }
    json_files.write(os.path.join(directory, INDEX), json_files.sealed(settings))
    seconds = time.monotonic() - began
    log(f"{directory}: {counted(count, 'document')}, {embedder.width} numbers each; {seconds:.1f} s")
    return Index(directory, approximate=graph)


def corpus_bytes(path: str) -> int:
    """Returns the size of the file of a corpus; 0 for standard input, or without a file."""
    return files.size(path) if files.is_file(path) else 0


def corpus_modified(path: str) -> int:
    """Returns when the file of a corpus was modified, in nanoseconds; 0 without a local file with content."""
    return files.modified(path) if corpus_bytes(path) else 0


def _line(document: Document) -> bytes:
    """Returns the line of a document in `TEXTS`."""
    return json.dumps(dataclasses.asdict(document), ensure_ascii=False).encode() + b"\n"


def _make_graph(directory: str, width: int) -> None:
    vectors = np.load(os.path.join(directory, VECTORS), mmap_mode="r")
    graph = usearch.Index(ndim=width, metric="ip", dtype="f32")
    for begin in range(0, len(vectors), 1 << 14):
        part = np.asarray(vectors[begin : begin + (1 << 14)])
        graph.add(np.arange(begin, begin + len(part)), part)
    with atomic.replace_file(os.path.join(directory, GRAPH)) as file:
        graph.save(file.name)
