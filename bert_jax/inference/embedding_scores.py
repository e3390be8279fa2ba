"""Evaluation of text embeddings by the similarity of pairs and by retrieval."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError, check_flag
from bert_jax.inference.embedding import Embedder
from bert_jax.inference.search import Reranker, Result, nearest
from bert_jax.inference.text_files import Document, read_documents
from bert_jax.io import comma_lists
from bert_jax.tasks import metrics, table
from bert_jax.tasks.table import Columns, Examples

QRELS = ("query-id", "corpus-id", "score")
_DEPTH = 100  # documents retrieved per query
_RECALLS = (10, 100)


def read_similarity(path: str, columns: str, log: Callable[[str], None]) -> Examples:
    """Returns pairs of texts with scores as labels, from three columns; "" for the columns of STS-B."""
    names = comma_lists.names(columns or table.STSB)
    if len(names) != 3:
        raise UserError(f"--columns={columns}: expected TEXT,TEXT,SCORE")
    of_file = Columns(names[0], names[1], names[2], quotes=bool(columns))
    examples = table.read_examples(path, of_file, parse_label=table.parse_number)
    examples.warn(log)
    return examples


def similarity(embedder: Embedder, pairs: Examples) -> dict[str, float]:
    """Returns the Spearman and Pearson correlations of the cosines of pairs with their scores."""
    vectors = [embedder.unit_vectors(texts) for texts in (pairs.texts_a, pairs.texts_b)]
    cosines = np.sum(vectors[0] * vectors[1], axis=-1)
    targets = np.asarray(pairs.labels, np.float64)
    scores = {name: function(cosines, targets) for name, function in metrics.SIMILARITY.items()}
    return {"pairs": len(pairs)} | scores


@dataclasses.dataclass(frozen=True)
class Judged:
    """Queries with their relevant documents in a corpus.

    `gains` are {id of a query: {id of a document: gain above 0}}, and `queries` {id: text} has all of them.
    """

    gains: Mapping[str, Mapping[str, int]]
    queries: Mapping[str, str]
    documents: Sequence[Document]


def read_retrieval(directory: str, split: str) -> Judged:
    """Returns a data set in BEIR's format: corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv."""
    path = os.path.join(directory, "qrels", f"{split}.tsv")
    gains: dict[str, dict[str, int]] = {}
    rows = table.read_examples(path, Columns(*QRELS), parse_label=int)
    rows.check(0)
    for query, document, gain in zip(rows.texts_a, rows.texts_b, rows.labels, strict=True):
        if gain > 0:
            gains.setdefault(query, {})[document] = gain
    read = [
        list(read_documents(os.path.join(directory, f"{name}.jsonl"), "--retrieval"))
        for name in ("corpus", "queries")
    ]
    documents, queries = ({each.id: each for each in found} for found in read)
    is_distinct = len(documents) + len(queries) == sum(map(len, read))
    check_flag("retrieval", directory, is_distinct, "a different _id for each document and each query")
    if not gains.keys() <= queries.keys() or not any(each.keys() & documents for each in gains.values()):
        raise UserError(f"{path}: expected ids of queries.jsonl and corpus.jsonl")
    return Judged(gains, {query.id: query.text for query in queries.values()}, [*documents.values()])


def retrieval(embedder: Embedder, judged: Judged, reranker: Reranker | None = None) -> dict[str, float]:
    """Returns the scores of retrieval by cosine, after which `reranker` reorders the first documents.

    Queries without a relevant document are ignored, and a document with the id of the query is not a result
    (Thakur et al. 2021).
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


def ranking_scores(
    judged: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Returns the means over queries of nDCG@10 (with graded gains), MRR@10, recall@10 and recall@100."""
    discounts = metrics.discounts(np.arange(1, 11))
    rows = []
    for query, gains in judged.items():
        best = sorted(gains.values(), reverse=True)[:10]
        top = [gains.get(document, 0) for document in ranked[query][:10]]
        ndcg = np.dot(top, discounts[: len(top)]) / np.dot(best, discounts[: len(best)])
        reciprocal = next((1 / rank for rank, gain in enumerate(top, 1) if gain), 0.0)
        found = (sum(document in gains for document in ranked[query][:most]) for most in _RECALLS)
        rows.append([ndcg, reciprocal, *(count / len(gains) for count in found)])
    names = ("ndcg10", "mrr10", *(f"recall{most}" for most in _RECALLS))
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))
