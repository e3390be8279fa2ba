"""How good the vectors of texts are: similarity of pairs, retrieval, and clusters.

The texts of each are read by a function of its own, before a model is loaded.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from etils import epy

from bert_jax.errors import UserError
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.search import corpus
from bert_jax.inference.search.index import Result
from bert_jax.inference.search.nearest import nearest
from bert_jax.inference.search.reranking import Reranker
from bert_jax.io import files, numerals
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

Progress = Callable[[int], None]


def read_similarity(path: str, columns: str, log: Callable[[str], None]) -> Examples:
    """Returns pairs of texts with a number for each, their label.

    Args:
        path: a TSV, CSV or JSON lines file.
        columns: the columns of both texts and of the score, such as `SIMILARITY_COLUMNS`, those of STS-B.
        log: called with a warning if rows are malformed and left out.

    Raises:
        UserError: the columns are not three names, or as of `table.read_examples`.
    """
    first, second, score = _columns(columns, 3)
    wanted = Columns(first, second, score, quotes=columns != table.STSB)
    examples = table.read_examples(path, wanted, parse_label=table.parse_number, flags="")
    examples.warn(log)
    return examples


def similarity(embedder: Embedder, pairs: Examples) -> dict[str, float]:
    """Returns Spearman's and Pearson's correlation of the cosines of pairs with their scores.

    Args:
        embedder: makes the vectors.
        pairs: as `read_similarity` returns them.
    """
    vectors = [embedder.unit_vectors(texts) for texts in (pairs.texts_a, pairs.texts_b)]
    cosines = np.sum(vectors[0] * vectors[1], axis=-1)
    targets = np.asarray(pairs.labels, np.float64)
    found = {name: function(cosines, targets) for name, function in metrics.SIMILARITY.items()}
    return {"pairs": len(pairs)} | found


def read_clusters(path: str, columns: str, log: Callable[[str], None]) -> Examples:
    """Returns texts with a label each.

    Args:
        path: a TSV, CSV or JSON lines file.
        columns: the columns of the text and of the label, such as `CLUSTER_COLUMNS`.
        log: as in `read_similarity`.

    Raises:
        UserError: the columns are not two names, or as of `table.read_examples`.
    """
    text, label = _columns(columns, 2)
    examples = table.read_examples(path, Columns(text, "", label), flags="")
    examples.warn(log)
    return examples


def clusters(embedder: Embedder, texts: Examples, seed: int = 0) -> dict[str, float]:
    """Returns the V-measure of clusters of texts, with as many clusters as there are labels.

    It is the mean of ten runs of mini-batch k-means with batches of 500, as each part is measured by MTEB
    (Muennighoff et al. 2023).

    Args:
        embedder: makes the vectors.
        texts: as `read_clusters` returns them.
        seed: the seed of the first run.
    """
    kinds = sorted({*texts.labels})
    vectors, found = np.asarray(embedder.embed(texts.texts_a)), []
    for run in range(_CLUSTER_RUNS):
        means = cluster.MiniBatchKMeans(
            len(kinds), batch_size=_CLUSTER_BATCH, n_init="auto", random_state=seed + run
        )
        found.append(cluster_metrics.v_measure_score(texts.labels, means.fit_predict(vectors)))
    return {
        "texts": len(texts),
        "labels": len(kinds),
        "v_measure": float(np.mean(found)),
        "v_measure_deviation": float(np.std(found, ddof=1)),
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
    documents: Sequence[corpus.Document]


def read_retrieval(directory: str, split: str) -> Judged:
    """Returns a data set in the form of BEIR (Thakur et al. 2021).

    Args:
        directory: has corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv.
        split: the name of the judgments.

    Raises:
        UserError: `directory` is a file, a file in it is missing or malformed, an id is not unique, a
            judgment names an unknown query, or no relevant document is in the corpus.
    """
    if files.is_file(directory):
        raise UserError(
            f"--retrieval={directory} is a file: expected a folder with corpus.jsonl, queries.jsonl and "
            f"qrels/{split}.tsv"
        )
    gains = read_judgments(os.path.join(directory, "qrels", f"{split}.tsv"))
    documents = _read_distinct(os.path.join(directory, "corpus.jsonl"))
    queries = {one.id: one.text for one in _read_distinct(os.path.join(directory, "queries.jsonl"))}
    _check_judged(gains, documents, queries, directory, split)
    return Judged(gains, queries, documents)


def retrieval(embedder: Embedder, judged: Judged, reranker: Reranker | None = None) -> dict[str, float]:
    """Returns how well the documents of each query are found.

    Documents are ordered by cosine. nDCG@10 has the gains of the judgments, MRR@10 the rank of the first
    relevant document, and recall@10 and @100 the share of the relevant documents that are found. Queries
    without a relevant document do not count, and a document with the id of the query is no result (Thakur et
    al. 2021).

    Args:
        embedder: makes the vectors, with the prompts of the model.
        judged: the queries and the corpus.
        reranker: orders the first documents of each query again.
    """
    documents, queries, sentence = judged.documents, judged.queries, embedder.sentence
    vectors = embedder.unit_vectors([one.text for one in documents], sentence.document_prompt)
    asked = embedder.unit_vectors([queries[query] for query in judged.gains], sentence.query_prompt)
    most = max(_DEPTH, reranker.candidates) if reranker else _DEPTH
    numbers, scores = nearest(asked, vectors, most + 1)
    ranked: dict[str, list[str]] = {}
    for query, row, values in zip(judged.gains, numbers.tolist(), scores.tolist(), strict=True):
        found = [Result(documents[number], score) for number, score in zip(row, values, strict=True)]
        found = [one for one in found if one.document.id != query]
        if reranker:
            found = reranker.rerank(queries[query], found)
        ranked[query] = [one.document.id for one in found[:_DEPTH]]
    counts = {"documents": len(documents), "queries": len(judged.gains)}
    return counts | ranking_scores(judged.gains, ranked)


def _read_distinct(path: str) -> list[corpus.Document]:
    """Returns the documents or queries of a file. Raises a UserError if two of them have one id."""
    found = list(corpus.read(path, flag="--retrieval"))
    counts = collections.Counter(one.id for one in found)
    repeated = next((id_ for id_, count in counts.items() if count > 1), None)
    if repeated is not None:
        raise UserError(
            f"{path}: {counts[repeated]} of its texts have the id {repeated!r}, so that judgments of it name "
            "no single text; give each a different _id"
        )
    return found


def _check_judged(
    judged: Mapping[str, Mapping[str, int]],
    documents: Sequence[corpus.Document],
    queries: Mapping[str, str],
    directory: str,
    split: str,
) -> None:
    """Raises a UserError if a judged query is unknown, or if the corpus has no relevant document."""
    if unknown := [query for query in judged if query not in queries]:
        raise UserError(
            f"{directory}: qrels/{split}.tsv judges the query {unknown[0]!r}, which queries.jsonl lacks"
        )
    known = {one.id for one in documents}
    if not any(gains.keys() & known for gains in judged.values()):
        document = next(iter(next(iter(judged.values()))))
        raise UserError(
            f"{directory}: corpus.jsonl has no relevant document of qrels/{split}.tsv, such as {document!r}; "
            "expected both of one data set"
        )


def read_judgments(path: str) -> dict[str, dict[str, int]]:
    """Returns {query: {document: gain}} of a TSV file with the columns `QRELS`; gains of 0 are left out.

    Raises:
        UserError: the file is missing or empty, a row is malformed, or the only relevant document of a query
            has its id, so that `retrieval` would never find it.
    """
    if not files.is_file(path):
        raise UserError(
            f"{path}: no such file; expected judgments as in BEIR, with the columns {', '.join(QRELS)}"
        )
    judged: dict[str, dict[str, int]] = {}
    for place, row in read_strictly(path, QRELS):
        query, document, gain = row.values()
        try:
            value = numerals.parse(gain, int)
        except ValueError:
            message = f"{place}: the score {gain!r:.40} is no whole number, such as 0 or 1"
            raise UserError(message) from None
        if value > 0:
            judged.setdefault(query, {})[document] = value
    if not judged:
        raise UserError(f"{path}: no query has a relevant document")
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
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(float(value))

    for query, gains in judged.items():
        documents = ranked[query]
        best = sorted(gains.values(), reverse=True)[:10]
        top = [gains.get(document, 0) for document in documents[:10]]
        add("ndcg10", np.dot(top, discounts[: len(top)]) / np.dot(best, discounts[: len(best)]))
        first = next((rank for rank, gain in enumerate(top, 1) if gain), None)
        add("mrr10", 1 / first if first else 0.0)
        for most in _RECALLS:
            add(f"recall{most}", sum(document in gains for document in documents[:most]) / len(gains))
    return {name: float(np.mean(values)) for name, values in found.items()}


def _columns(text: str, count: int) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != count or not all(names):
        expected = "TEXT,TEXT,SCORE" if count == 3 else "TEXT,LABEL"
        raise UserError(f"--columns={text}: expected {expected}")
    return names
