r"""Search texts by meaning, or find hard negatives to train sentence embeddings.

    bert-jax search --model=sentence-transformers/all-MiniLM-L6-v2 --corpus=docs.txt --index=docs \
        --query='How do I start?'
    bert-jax search --index=docs --queries=queries.txt --json --top=100
    bert-jax search --index=docs --rerank=runs/reranker
    cat queries.txt | bert-jax search --index=docs
    bert-jax search --model=runs/search --input=pairs.tsv --text=question,answer \
        --output=hard.jsonl

The first call with --corpus writes the index, a directory with a vector for each document; later calls need
only --index. The corpus has one document per line, or is a table (.jsonl, .csv, .tsv, .parquet) with a column
`text`, `sentence`, `review` or `content`, and optionally `title` and `_id`. Without --query and --queries,
queries are lines of standard input. Each query is compared with all documents. --rerank reorders the best 100
(or --top) with a fine-tuned cross-encoder or late interaction model.

With --input and --text=A,B, the negatives of each text of A are its nearest texts among B and the --corpus.
The output has A, B and a list `negatives`, for --config.data.negatives=negatives of finetune/embedding. A
text that may be correct is not a negative: if B has it in a row with an equal text in A, or if its cosine
(with --rerank its score) is not at least --margin below the pair's. Rows with fewer negatives than
--negatives are skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags as absl_flags
from etils import epy

from bert_jax.commands import shared
from bert_jax.errors import UserError, check_flag
from bert_jax.io import checks, files
from bert_jax.io.progress import Progress, log
from bert_jax.io.wording import counted
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, search, text_files
    from bert_jax.parallel import compiler_options
    from bert_jax.tasks import predictions, table

_BATCH = 256  # queries of a file that are computed at a time
_DEPTH = 100  # nearest texts among which negatives are chosen
_SHOWN = 100  # characters of a document on the terminal
_OF_SEARCH = ("index", "query", "queries", "top", "json")
_OF_NEGATIVES = ("text", "output", "negatives", "margin")


def define_flags(define: Define) -> None:
    define.string("index", "Directory of the index, to create or to search.")
    define.string("model", f"Model: {shared.MODEL}. Default: the index's.")
    shared.add_dtype(define)
    define.string("corpus", "Documents to index, one per line, or a table.")
    define.overwrite()
    define.strings("query", "Query. Repeatable.", [])
    define.string("queries", "Queries, one per line, or a table. Default: standard input.")
    define.integer("top", "Number of documents to show per query.", 10)
    shared.add_reranker(define)
    define.json()
    define.string("input", "Pairs that need hard negatives: TSV, CSV, JSON lines, Parquet, or hf:ORG/NAME.")
    define.string("text", "Columns A,B of the pairs of --input.")
    define.string("output", "File for the pairs with their negatives: .jsonl.")
    define.integer("negatives", "Number of negatives per pair.", 4)
    define.number(
        "margin",
        "Minimum gap between a pair and a negative: a fraction of the pair's cosine (default: 0.05), or with "
        "--rerank a difference of scores (default: 0.1).",
    )


def run(flags: absl_flags.FlagValues, args: list[str]) -> None:
    shared.at_least(flags, top=1, negatives=1)
    shared.check_one(flags, "index", "input")
    unused, use = (_OF_SEARCH, "--input") if flags.input else (_OF_NEGATIVES, "--index")
    shared.check_unused(flags, unused, use)
    return _find_negatives(flags) if flags.input else _search(flags)


def _search(flags: absl_flags.FlagValues) -> None:
    shared.check_one(flags, "query", "queries", required=False)
    check_flag("index", flags.index, not files.is_remote(flags.index), "a local directory")
    for name in ("corpus", "queries"):
        if path := flags[name].value:
            text_files.check(path, f"--{name}")
    existing = _existing(flags)
    source = flags.model or (existing.settings["checkpoint"] if existing else "")
    compiler_options.enable_compilation_cache()
    reranker = shared.load_reranker(flags, max(flags.top, search.CANDIDATES) if flags.rerank else 0)
    model = convert.load(source, log=log)
    # Vectors of a model that was not trained for sentence embeddings are compared by their directions.
    normalize = None if model.sentence else True
    embedder = embedding.Embedder(model, normalize=normalize, dtype=flags.dtype, log=log)
    made_by = search.fingerprint(model, embedder)
    searched = existing or _make(flags, embedder, source, made_by)
    recorded = searched.settings["model"]
    if differing := [name for name in made_by if made_by[name] != recorded.get(name)]:
        raise UserError(
            f"--index={flags.index}: {source} differs from the model of the index, "
            f"{searched.settings['checkpoint']}, in {', '.join(differing)}; {search.ANEW}"
        )
    most = reranker.candidates if reranker else flags.top
    for queries in _batches(flags):
        vectors = np.asarray(
            embedder.embed([query.text for query in queries], embedder.sentence.query_prompt)
        )
        for query, results in zip(queries, searched.search(vectors, most), strict=True):
            if reranker:
                results = reranker.rerank(query.text, results)
            _show(query, results[: flags.top], flags.json)


def _existing(flags: absl_flags.FlagValues) -> search.Index | None:
    """Returns the index in the directory; None if there is none, or if it has to be built again."""
    exists = files.exists(os.path.join(flags.index, search.INDEX))
    if not exists or (flags.corpus and flags.overwrite):  # also one that is damaged
        shared.check_given(flags, ("corpus", "model"), f"--index={flags.index}, a new index,")
        checks.check_free(flags.index, flags.overwrite, "--index")
        return None
    existing = search.Index(flags.index)
    if flags.corpus and existing.settings["digests"]["corpus"] != files.crc32c(flags.corpus):
        raise UserError(
            f"--corpus={flags.corpus} differs from the corpus of {flags.index}; --overwrite indexes it again"
        )
    return existing


def _make(
    flags: absl_flags.FlagValues, embedder: embedding.Embedder, source: str, made_by: dict[str, Any]
) -> search.Index:
    with Progress() as progress:
        progress.start("embedding", text_files.count_lines(flags.corpus), "documents")
        return search.make(
            flags.index,
            text_files.read_documents(flags.corpus),
            embedder,
            files.absolute(source),
            flags.corpus,
            made_by=made_by,
            progress=progress.at,
            log=lambda line: log(f"{line}{embedder.engine.unknown}"),
        )


def _batches(flags: absl_flags.FlagValues) -> Iterator[list[text_files.Document]]:
    """Yields batches of queries; queries from standard input come one by one."""
    if flags.query:
        yield [text_files.Document(str(number), text) for number, text in enumerate(flags.query)]
        return
    queries = text_files.read_documents(flags.queries or "-", flag="--queries")
    while batch := list(itertools.islice(queries, _BATCH if flags.queries else 1)):
        yield batch


def _show(query: text_files.Document, results: list[search.Result], as_json: bool) -> None:
    if as_json:
        rows = [{"id": one.document.id, "score": one.score, "text": one.document.text} for one in results]
        line = {"id": query.id, "query": query.text, "results": rows}
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    print(query.text)
    for rank, one in enumerate(results, 1):
        text = " ".join(one.document.text.split())
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
        print(f"{rank:>4}  {one.score:7.4f}  {one.document.id:>8}  {text}")
    sys.stdout.flush()


def _find_negatives(flags: absl_flags.FlagValues) -> None:
    shared.check_given(flags, ("model", "text", "output"), "--input")
    names = [*shared.text_columns(flags, least=2).values()]
    checks.check_output_file(flags.output, (".jsonl",), overwrite=flags.overwrite)
    columns = table.Columns(names[0], names[1])
    examples = table.read_examples(flags.input, columns, parse_label=None)
    examples.warn(log)
    corpus = text_files.read_documents(flags.corpus) if flags.corpus else ()
    further = [one.text for one in corpus if one.text.strip()]
    compiler_options.enable_compilation_cache()
    embedder = embedding.Embedder(convert.load(flags.model, log=log), dtype=flags.dtype, log=log)
    reranker = shared.load_reranker(flags)

    began = time.monotonic()
    candidates = list(dict.fromkeys([*examples.texts_b, *further]))
    places = {text: place for place, text in enumerate(candidates)}
    of_candidates = embedder.unit_vectors(candidates, embedder.sentence.document_prompt)
    of_anchors = embedder.unit_vectors(examples.texts_a, embedder.sentence.query_prompt)
    of_positives = of_candidates[[places[text] for text in examples.texts_b]]
    vectors = of_anchors, of_positives, of_candidates
    scorer = reranker.scores if reranker else None
    texts, count = (examples.texts_a, examples.texts_b, candidates), flags.negatives
    options: dict[str, Any] = {"count": count, "depth": max(_DEPTH, 2 * count), "margin": flags.margin}
    found = list(search.mine(*texts, vectors, scorer=scorer, **options))
    rows = [
        (a, b, negatives)
        for a, b, negatives in zip(examples.texts_a, examples.texts_b, found, strict=True)
        if len(negatives) == count
    ]
    objects = (dict(zip([*names, "negatives"], row, strict=True)) for row in rows)
    predictions.write_json_lines(flags.output, objects)
    print(
        f"wrote {flags.output}: {counted(len(rows), 'pair')} with {counted(count, 'negative')} each, "
        f"of {counted(len(candidates), 'text')}; {len(found) - len(rows):,} with fewer skipped; "
        f"{time.monotonic() - began:.1f} s"
    )
