"""Evaluation of vectors of texts: similarity of pairs, retrieval, and clusters.

A `read_` function reads the texts of each, before a model is loaded.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from etils import epy

from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.search import Reranker, Result, nearest
from bert_jax.inference.text_files import Document, read_documents
from bert_jax.io import files
from bert_jax.tasks import metrics, table
from bert_jax.tasks.table import Columns, Examples, read_strictly

with epy.lazy_imports():  # they take seconds to import
    from sklearn import cluster
    from sklearn import metrics as cluster_metrics

SIMILARITY_COLUMNS, CLUSTER_COLUMNS = table.STSB, "text,label"
QRELS = ("query-id", "corpus-id", "score")
_DEPTH = 100  # documents that are found for each query
_RECALLS = (10, 100)
_CLUSTER_BATCH, _CLUSTER_RUNS = 500, 10


def read_similarity(path: str, columns: str, log: Callable[[str], None]) -> Examples:
    """Returns pairs of texts with a number for each, their label.

    Args:
        path: a TSV, CSV or JSON lines file.
        columns: the columns of both texts and of the score, such as `SIMILARITY_COLUMNS`, those of STS-B.
        log: called with a warning if malformed rows are skipped.
    """
    first, second, score = _columns(columns, 3)
    of_file = Columns(first, second, score, quotes=columns != table.STSB)
    examples = table.read_examples(path, of_file, parse_label=table.parse_number, flags="")
    examples.warn(log)
    return examples


def similarity(embedder: Embedder, pairs: Examples) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of the cosines of pairs with their scores."""
    vectors = [embedder.unit_vectors(texts) for texts in (pairs.texts_a, pairs.texts_b)]
    cosines = np.sum(vectors[0] * vectors[1], axis=-1)
    targets = np.asarray(pairs.labels, np.float64)
    scores = {name: function(cosines, targets) for name, function in metrics.SIMILARITY.items()}
    return {"pairs": len(pairs)} | scores


def read_clusters(path: str, columns: str, log: Callable[[str], None]) -> Examples:
    """Returns texts with a label each; the arguments are as in `read_similarity`."""
    text, label = _columns(columns, 2)
    examples = table.read_examples(path, Columns(text, "", label), flags="")
    examples.warn(log)
    return examples


def clusters(embedder: Embedder, texts: Examples, seed: int = 0) -> dict[str, float]:
    """Returns the V-measure of clusters of texts, with as many clusters as there are labels.

    It is the mean of ten runs of mini-batch k-means, as in MTEB (Muennighoff et al. 2023).
    `seed` is the seed of the first run.
    """
    kinds = sorted({*texts.labels})
    vectors, values = np.asarray(embedder.embed(texts.texts_a)), []
    for run in range(_CLUSTER_RUNS):
        means = cluster.MiniBatchKMeans(
            len(kinds), batch_size=_CLUSTER_BATCH, n_init="auto", random_state=seed + run
        )
        values.append(cluster_metrics.v_measure_score(texts.labels, means.fit_predict(vectors)))
    return {
        "texts": len(texts),
        "labels": len(kinds),
        "v_measure": float(np.mean(values)),
        "v_measure_deviation": float(np.std(values, ddof=1)),
    }


@dataclasses.dataclass(frozen=True)
class Judged:
    """Queries with their relevant documents, in a corpus.

    Attributes:
        gains: {id of a query: {id of a document: gain above 0}}.
        queries: {id: text}, with all queries of `gains`.
        documents: the corpus.
    """

    gains: Mapping[str, Mapping[str, int]]
    queries: Mapping[str, str]
    documents: Sequence[Document]


def read_retrieval(directory: str, split: str) -> Judged:
    """Returns a data set in the form of BEIR (Thakur et al. 2021).

    Args:
        directory: has corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.
        split: the name of the judgments.

    Raises:
        UserError: a file is missing or malformed, an id is not unique, or the judgments are of other texts.
    """
    path = os.path.join(directory, "qrels", f"{split}.tsv")
    if not files.is_file(path):
        raise UserError(
            f"--retrieval={directory}: expected corpus.jsonl, queries.jsonl and qrels/{split}.tsv in it"
        )
    gains = read_judgments(path)
    documents = list(_read_distinct(os.path.join(directory, "corpus.jsonl")).values())
    queries = _read_distinct(os.path.join(directory, "queries.jsonl"))
    known = {document.id for document in documents}
    if not gains.keys() <= queries.keys() or not any(each.keys() & known for each in gains.values()):
        raise UserError(f"{path}: expected queries of queries.jsonl, and documents of corpus.jsonl")
    return Judged(gains, {query.id: query.text for query in queries.values()}, documents)


def retrieval(embedder: Embedder, judged: Judged, reranker: Reranker | None = None) -> dict[str, float]:
    """Returns the scores of the documents that are found for each query.

    Documents are ordered by cosine, and the first ones again by `reranker`. nDCG@10 has the gains of the
    judgments, MRR@10 the rank of the first relevant document, and recall@10 and @100 the fraction of the
    relevant documents that are found. Queries without a relevant document do not count, and a document with
    the id of the query is no result (Thakur et al. 2021).
    """
    documents, queries, sentence = judged.documents, judged.queries, embedder.sentence
    vectors = embedder.unit_vectors([each.text for each in documents], sentence.document_prompt)
    asked = embedder.unit_vectors([queries[query] for query in judged.gains], sentence.query_prompt)
    most = max(_DEPTH, reranker.candidates) if reranker else _DEPTH
    numbers, scores = nearest(asked, vectors, most + 1)
    ranked: dict[str, list[str]] = {}
    for query, row, values in zip(judged.gains, numbers.tolist(), scores.tolist(), strict=True):
        results = [Result(documents[number], score) for number, score in zip(row, values, strict=True)]
        results = [result for result in results if result.document.id != query]
        if reranker:
            results = reranker.rerank(queries[query], results)
        ranked[query] = [result.document.id for result in results[:_DEPTH]]
    counts = {"documents": len(documents), "queries": len(judged.gains)}
    return counts | ranking_scores(judged.gains, ranked)


def _read_distinct(path: str) -> dict[str, Document]:
    by_id: dict[str, Document] = {}
    for document in read_documents(path, flag="--retrieval"):
        if by_id.setdefault(document.id, document) is not document:
            raise UserError(f"{path}: two texts have the id {document.id!r}; give each a different _id")
    return by_id


def read_judgments(path: str) -> dict[str, dict[str, int]]:
    """Returns {query: {document: gain}} of a TSV file with the columns `QRELS`, without gains of 0.

    Raises:
        UserError: the file is missing or empty, or a row is malformed.
    """
    judged: dict[str, dict[str, int]] = {}
    for place, row in read_strictly(path, QRELS):
        query, document, gain = row.values()
        try:
            value = int(gain)
        except ValueError:
            raise UserError(f"{place}: the score {gain!r:.40} is no whole number, such as 0 or 1") from None
        if value > 0:
            judged.setdefault(query, {})[document] = value
    if lost := [query for query, gains in judged.items() if gains.keys() == {query}]:
        raise UserError(
            f"{path}: the only relevant document of the query {lost[0]!r} has the same id, and a document "
            "with the id of the query is no result; give queries and documents different ids"
        )
    return judged


def ranking_scores(
    judged: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Returns the means over queries of nDCG@10, MRR@10 and recalls.

    Args:
        judged: {query: {document: gain above 0}}.
        ranked: {query: documents, the best first}.
    """
    discounts = metrics.discounts(np.arange(1, 11))
    scores: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        scores.setdefault(name, []).append(float(value))

    for query, gains in judged.items():
        documents = ranked[query]
        best = sorted(gains.values(), reverse=True)[:10]
        top = [gains.get(document, 0) for document in documents[:10]]
        add("ndcg10", np.dot(top, discounts[: len(top)]) / np.dot(best, discounts[: len(best)]))
        first = next((rank for rank, gain in enumerate(top, 1) if gain), None)
        add("mrr10", 1 / first if first else 0.0)
        for most in _RECALLS:
            add(f"recall{most}", sum(document in gains for document in documents[:most]) / len(gains))
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _columns(text: str, count: int) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != count or not all(names):
        expected = "TEXT,TEXT,SCORE" if count == 3 else "TEXT,LABEL"
        raise UserError(f"--columns={text}: expected {expected}")
    return names
