"""Dense retrieval in a corpus, reranking of results with a fine-tuned model, and hard negative mining."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.convert import Model
from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder, write_npy
from bert_jax.inference.predictor import Predictor
from bert_jax.inference.text_files import Document
from bert_jax.io import atomic, files, json_files
from bert_jax.io.wording import alternatives, counted
from bert_jax.tasks.predictions import TablePredictions
from bert_jax.tasks.table import Examples

INDEX, VECTORS, TEXTS = "index.json", "vectors.npy", "texts.jsonl"
ANEW = "rebuild the index with --corpus and --overwrite"
CANDIDATES = 100  # default number of documents per query to rerank

_VERSION = 2
_SCHEMA = {
    "version": range(_VERSION, _VERSION + 1),
    "checkpoint": str,
    "corpus": str,
    "digests": {str: int},
    "model": dict,
}
_SCORES = 1 << 26  # approximate number of inner products in memory at a time
_PART = 1 << 26  # bytes of texts in memory at a time
_ANCHORS = 512  # anchors searched at a time


@dataclasses.dataclass(frozen=True)
class Result:
    """A document and its score: the inner product of the vectors, or the score of a reranker."""

    document: Document
    score: float


def nearest(queries: np.ndarray, vectors: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers int64 [Q, k] and inner products float32 [Q, k] of the nearest vectors of queries.

    `queries` are float32 [Q, H], and `vectors` float32 [N, H]; k is the smaller of `most` and N. The largest
    come first; ties are ordered by number.
    """
    queries = np.ascontiguousarray(queries, np.float32)
    count = min(most, len(vectors))
    numbers = np.zeros((len(queries), count), np.int64)
    scores = np.zeros((len(queries), count), np.float32)
    rows = max(1, _SCORES // max(1, len(vectors)))
    for begin in range(0, len(queries) if count else 0, rows):
        for i, row in enumerate(queries[begin : begin + rows] @ np.asarray(vectors).T, begin):
            least = np.partition(row, -count)[-count]
            chosen = np.flatnonzero(~(row < least))
            numbers[i] = chosen[np.argsort(-row[chosen], kind="stable")[:count]]
            scores[i] = row[numbers[i]]
    return numbers, scores


def fingerprint(model: Model, embedder: Embedder) -> dict[str, Any]:
    """Returns the digests and settings that determine an embedder's vectors, in any format of the model."""
    weights, tokenizer = hashlib.sha256(), embedder.tokenizer
    for name, x in sorted(model.params.items()):
        if name.startswith("encoder/"):
            weights.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    # Formats store the same vocabulary in different files, so the digest is not computed from a file.
    settings = [tokenizer.lower_case, tokenizer.strip_accents, tokenizer.normalizer]
    described = [tokenizer.kind, tokenizer.tokens, settings, dataclasses.asdict(tokenizer.template)]
    return {
        "weights": weights.hexdigest(),
        "tokenizer": hashlib.sha256(json.dumps(described).encode()).hexdigest(),
        "pooling": embedder.pooling,
        "normalize": embedder.normalize,
        "max_seq_length": embedder.max_seq_length,
        "prefix": embedder.sentence.document_prompt,
    }


class Index:
    """An index in a local directory that `make` has filled; its files are mapped into memory.

    `settings` are the content of index.json, and `vectors` float32 [N, H] have one vector per document.
    UserError if there is no index, or one of its files is missing or differs from its digest.
    """

    def __init__(self, directory: str):
        self.directory = directory
        path = os.path.join(directory, INDEX)
        self.settings = json_files.read(path, _SCHEMA)
        self.vectors = self._read(VECTORS, functools.partial(np.load, mmap_mode="r"))
        self._texts = self._read(TEXTS, functools.partial(np.memmap, mode="r"))
        parts = range(0, len(self._texts), _PART)
        ends = (np.flatnonzero(self._texts[i : i + _PART] == ord("\n")) + i + 1 for i in parts)
        self._ends = np.concatenate([*ends])

    def _read(self, name: str, read: Callable[[str], Any]) -> Any:
        path = os.path.join(self.directory, name)
        try:
            if files.crc32c(path) == self.settings["digests"][name]:
                return read(path)
        except (OSError, UserError, KeyError):
            pass
        raise UserError(f"{path} is missing or damaged; {ANEW}")

    def __len__(self) -> int:
        return len(self.vectors)

    def document(self, number: int) -> Document:
        """Returns the document with this number, counted from 0."""
        begin = self._ends[number - 1] if number else 0
        return Document(**json.loads(self._texts[begin : self._ends[number]].tobytes()))

    def search(self, queries: np.ndarray, most: int) -> Iterator[list[Result]]:
        """Yields, for each of the `queries`, float32 [Q, H], the results of `nearest`."""
        for numbers, scores in zip(*nearest(queries, self.vectors, most), strict=True):
            yield [Result(self.document(n), score) for n, score in zip(numbers, scores.tolist(), strict=True)]


def make(
    directory: str,
    documents: Iterable[Document],
    embedder: Embedder,
    checkpoint: str,
    corpus: str,
    *,
    made_by: Mapping[str, Any],
    progress: Callable[[int], None] = lambda done: None,
    log: Callable[[str], None] = print,
) -> Index:
    """Embeds a corpus, in bounded memory, and returns its index.

    `INDEX` is written last, so an interrupted call leaves no index. An older index stays until all new
    vectors are computed. `made_by` is the `fingerprint` of the embedder. UserError if the corpus has no
    document.
    """
    digests = {"corpus": files.crc32c(corpus)}  # computed before reading, to detect later changes
    documents = iter(documents)
    first = next(documents, None)  # an unreadable corpus raises before any file is written
    if first is None:
        raise UserError(f"{corpus} has no documents")
    began = time.monotonic()
    paths = {name: os.path.join(directory, name) for name in (VECTORS, TEXTS, INDEX)}

    def texts(out):
        for document in itertools.chain([first], documents):
            out.write(json.dumps(dataclasses.asdict(document), ensure_ascii=False).encode() + b"\n")
            yield document.text

    files.make_directory(directory)
    with atomic.replace_file(paths[TEXTS]) as out, atomic.replace_file(paths[VECTORS]) as vectors:
        stream = embedder.stream(texts(out), progress, prefix=made_by["prefix"])
        count = write_npy(vectors, embedder, (("", features) for features in stream))
        files.remove(paths[INDEX], missing_ok=True)
    digests |= {name: files.crc32c(paths[name]) for name in (VECTORS, TEXTS)}
    described = {"checkpoint": checkpoint, "corpus": corpus, "digests": digests, "model": dict(made_by)}
    json_files.write(paths[INDEX], {"version": _VERSION} | described)
    seconds = time.monotonic() - began
    log(f"{directory}: {counted(count, 'document')}, {embedder.width} numbers each; {seconds:.1f} s")
    return Index(directory)


class Reranker:
    """Scores pairs of texts with a fine-tuned model, and reranks the first `candidates` documents per query.

    The model is for reranking, late interaction, regression on pairs (the number is the score), or
    classification with two labels. The score of a classification is the probability of the larger label if
    labels are integers, and otherwise of the task's label for relevant documents; UserError if it is not
    known.
    """

    def __init__(self, model: Predictor, candidates: int = CANDIDATES, log: Callable[[str], None] = print):
        self.candidates, self._model, self._output = candidates, model, 0
        task = model.task
        if not task.scores_pairs or not task.line_names()["text_b"]:
            raise UserError(
                f"--rerank={model.source}: expected reranking, late interaction, or regression or "
                f"classification with two labels on pairs, not {task.title}"
            )
        if task.labels:
            are_integers = all(re.fullmatch(r"-?\d+", each) for each in task.labels)
            relevant = max(task.labels, key=int) if are_integers else task.spec.relevant
            if relevant not in task.labels:
                given = alternatives(task.labels)
                raise UserError(f"--rerank={model.source}: expected labels 0 and 1 (relevant), not {given}")
            log(f"--rerank={model.source}: the score is the probability of {relevant!r}")
            self._output = task.labels.index(relevant)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> np.ndarray:
        """Returns the score of each pair, float32 [N]."""
        if not pairs:
            return np.zeros(0, np.float32)
        first, second = map(list, zip(*pairs, strict=True))
        ids = [str(number) for number in range(len(pairs))]
        examples = Examples("the pairs", ids, first, second)
        predictions = self._model.predict(examples)
        assert isinstance(predictions, TablePredictions)
        return predictions.outputs[:, self._output].astype(np.float32)

    def rerank(self, query: str, results: Sequence[Result]) -> list[Result]:
        """Returns the candidates with new scores, the largest first, followed by the other results."""
        first, others = results[: self.candidates], results[self.candidates :]
        scores = self.scores([(query, result.document.text) for result in first]).tolist()
        scored = [Result(result.document, score) for result, score in zip(first, scores, strict=True)]
        return [*sorted(scored, key=lambda result: -result.score), *others]


def mine(
    anchors: Sequence[str],
    positives: Sequence[str],
    candidates: Sequence[str],
    vectors: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    count: int = 4,
    depth: int = 100,
    margin: float | None = None,
    scorer: Callable[[Sequence[tuple[str, str]]], np.ndarray] | None = None,
) -> Iterator[list[str]]:
    """Yields up to `count` hard negatives of each of N anchors among C different candidates, by cosine.

    A text equal to the anchor, or to a positive of an equal anchor, is not used as a negative. `vectors` are
    float32 [N, H], [N, H] and [C, H], of length 1. The `depth` nearest candidates are considered. The cosine
    p of the positive limits the cosines of negatives to p - margin * |p|; the default margin, 0.05, was best
    in de Souza P. Moreira et al. 2024. With a scorer, a model that reads both texts of a pair, the margin is
    the minimum difference of the scores, 0.1 by default.
    """
    of_anchors, of_positives, of_candidates = vectors
    known: dict[str, set[str]] = {}
    for anchor, positive in zip(anchors, positives, strict=True):
        known.setdefault(anchor, {anchor}).add(positive)
    for begin in range(0, len(anchors), _ANCHORS):
        some = slice(begin, begin + _ANCHORS)
        found = zip(anchors[some], *nearest(of_anchors[some], of_candidates, depth), strict=True)
        near: list[list[tuple[str, float]]] = []
        for anchor, numbers, cosines in found:
            pairs = zip((candidates[i] for i in numbers), cosines, strict=True)
            near.append([(text, cosine) for text, cosine in pairs if text not in known[anchor]])
        if scorer is None:
            of_pairs = np.sum(of_anchors[some] * of_positives[some], axis=-1)
            limits = of_pairs - (0.05 if margin is None else margin) * np.abs(of_pairs)
        else:
            texts = [(anchor, x) for anchor, row in zip(anchors[some], near, strict=True) for x, _ in row]
            scores = iter(np.asarray(scorer(texts)).tolist())
            near = [[(text, next(scores)) for text, _ in row] for row in near]
            limits = np.asarray(scorer([*zip(anchors[some], positives[some], strict=True)]))
            limits -= 0.1 if margin is None else margin
        for row, limit in zip(near, limits, strict=True):
            yield [text for text, score in row if score <= limit][:count]
