"""Search a corpus of texts by meaning: embed it once, and find the documents nearest to each query.

    bert-jax search --checkpoint=all-MiniLM-L6-v2 --corpus=docs.txt --index=docs --query='How do I start?'
    bert-jax search --index=docs --queries=queries.txt --json --top=100
    bert-jax search --index=docs --rerank=runs/reranker
    cat queries.txt | bert-jax search --index=docs

The first call with --corpus makes the index, a directory with a vector for each document; later ones need
only --index. The corpus has one document per line, or JSON objects with `text` and perhaps `title` and `_id`
if its name ends in .jsonl. Without --query and --queries, queries are read from standard input, one per line.
The search compares each query with all documents; --approximate makes and uses a graph (usearch), which is
much faster from about a million documents on. --rerank orders the best --candidates again, by the score of a
fine-tuned model that reads the query and the document together, or compares their tokens (late interaction).
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags as absl_flags
from etils import epy

from bert_jax.commands.flags import models
from bert_jax.errors import UserError, check_installed
from bert_jax.io import atomic, files
from bert_jax.io.progress import Progress, log
from bert_jax.settings.flags import Define

with epy.lazy_imports():
    from bert_jax import convert
    from bert_jax.inference import embedding, embedding_files
    from bert_jax.inference.search import corpus, fingerprint, index
    from bert_jax.parallel import compiler_options

_BATCH = 256  # queries of a file that are computed at a time
_SHOWN = 100  # characters of a document on the terminal

INSTEAD_OF_ARGUMENTS = "a query is --query=TEXT"


def define_flags(define: Define) -> None:
    """Defines the flags."""
    define.string("index", "Directory of the index.", required="DIR, a new directory or that of an index")
    define.string("checkpoint", f"The model: {models.CHECKPOINT}. Default: that of the index.")
    models.add_dtype(define)
    define.string("corpus", "Documents, one per line, or .jsonl; needed to make an index.")
    define.overwrite()
    define.string("text", "Field of the text in a corpus or queries in .jsonl.", "text")
    define.strings("query", "A query. May be given several times.", [])
    define.string("queries", "File of queries, one per line, or .jsonl. Default: standard input.")
    define.integer("top", "Number of documents to show for each query.", 10)
    define.boolean("approximate", "Make a graph, or use it: faster in large corpora, and may miss documents.")
    models.add_reranker(define)
    define.string(
        "document_prompt",
        "Put before each document: a prompt of the model by its name. Default: its prompt `document` or "
        "`passage`, if it has one.",
    )
    define.string(
        "query_prompt",
        "Put before each query: a prompt of the model by its name. Default: its prompt `query`, if it has "
        "one.",
    )
    define.json()


def run(flags: absl_flags.FlagValues, args: list[str]) -> int:
    """Runs the command."""
    if flags.top < 1:
        raise UserError(f"--top={flags.top}: expected 1 or more")
    if flags.query and flags.queries:
        raise UserError("--query and --queries both name queries; give one of them")
    if flags.corpus == "-" and not (flags.query or flags.queries):
        raise UserError("--corpus=- is read from standard input; give --query=TEXT or --queries=FILE")
    if flags.overwrite and not flags.corpus:
        raise UserError("--overwrite makes the index anew from a corpus: give --corpus=FILE, or leave it out")
    if flags.approximate:
        check_installed("usearch", "search", "--approximate")
    if files.is_remote(flags.index):
        raise UserError(f"--index={flags.index}: expected a local directory, which is mapped into memory")
    # A missing file is reported before a model is loaded.
    for name in ("corpus", "queries"):
        if path := flags[name].value:
            corpus.check(path, f"--{name}")
    found = _existing(flags)
    checkpoint = flags.checkpoint or (found.settings["checkpoint"] if found else "")
    if not checkpoint:
        raise UserError(f"--index={flags.index}: no index there; give --checkpoint=DIR and --corpus=FILE")
    compiler_options.enable_compilation_cache()
    reranker = models.load_reranker(flags, log=log)
    if reranker and flags.top > reranker.candidates:
        log(
            f"warning: --top={flags.top} shows more documents than --rerank orders; those after the first "
            f"{reranker.candidates} have the scores of the vectors: try --candidates={flags.top}"
        )
    model = convert.load(checkpoint, log=log)
    # Vectors of a model that was not trained for sentence embeddings are compared by their directions.
    normalize = None if model.sentence else True
    embedder = embedding.Embedder(model, normalize=normalize, dtype=flags.dtype, log=log)
    prefix = _prompt(embedder, flags, "query_prompt")
    made_by = fingerprint.of(model, embedder)
    if found is None:
        found = _make(flags, embedder, checkpoint, made_by)
    else:
        _check_same(found, embedder, checkpoint, flags)
        _check_fingerprint(found, made_by, checkpoint, flags.index)
    for queries in _batches(flags):
        vectors = np.asarray(embedder.embed([query.text for query in queries], prefix))
        most = max(flags.top, reranker.candidates) if reranker else flags.top
        for query, results in zip(queries, found.search(vectors, most), strict=True):
            if reranker:
                results = reranker.rerank(query.text, results)
            _show(query, results[: flags.top], flags.json)
    return 0


def _existing(flags: absl_flags.FlagValues) -> index.Index | None:
    """Returns the index of the directory, unless there is none, or it is to be made anew."""
    if not files.exists(os.path.join(flags.index, index.INDEX)):
        if not flags.corpus:
            raise UserError(f"--index={flags.index}: no index there; give --corpus=FILE to make it")
        if files.names(flags.index) and not flags.overwrite and not _is_unfinished(flags.index):
            raise UserError(f"--index={flags.index} has other files; choose another directory")
        return None
    if flags.corpus and flags.overwrite:  # also one that is damaged
        return None
    found = index.Index(flags.index, flags.approximate)
    if not flags.corpus:
        return found
    if flags.corpus == "-":
        raise UserError(
            f"--index={flags.index}: there is one already; leave --corpus out to search in it, or make it "
            "anew with --overwrite"
        )
    given: dict[str, Any] = {"corpus": _name(flags.corpus), "bytes": index.corpus_bytes(flags.corpus)}
    # Indexes of earlier versions lack the field and the weights.
    if "field" in found.settings:
        given["field"] = flags.text
    if not found.settings.get("weights"):
        given["checkpoint"] = files.absolute(flags.checkpoint or found.settings["checkpoint"])
    for name, value in given.items():
        if found.settings[name] != value:
            what = f"{flags.corpus} with" if name == "bytes" else f"the {name}"
            unit = " bytes" if name == "bytes" else ""
            raise UserError(
                f"--index={flags.index}: made from {what} {found.settings[name]}{unit}, and now it is "
                f"{value}{unit}; choose another directory, or make it anew with --overwrite"
            )
    _check_content(found, flags)
    return found


def _check_content(found: index.Index, flags: absl_flags.FlagValues) -> None:
    """Raises a UserError if a corpus of the size of that of an index has another content.

    The content is compared only if the corpus was modified at another time, as copies are, too.
    """
    before, now = found.settings.get("modified", 0), index.corpus_modified(flags.corpus)
    if not before or not now or before == now:
        return
    number = found.first_difference(corpus.read(flags.corpus, flags.text))
    if number is not None:
        raise UserError(
            f"--index={flags.index}: made from another content of {flags.corpus}, whose document {number} "
            "(from 0) is not that of the index; choose another directory, or make it anew with --overwrite"
        )


def _is_unfinished(directory: str) -> bool:
    """Returns whether a directory has nothing but what a process that was making an index left there."""
    names = {atomic.final_name(name) for name in files.names(directory)}
    return names <= {index.VECTORS, index.TEXTS, index.OFFSETS, index.GRAPH, index.INDEX}


def _check_same(
    found: index.Index, embedder: embedding.Embedder, checkpoint: str, flags: absl_flags.FlagValues
) -> None:
    """Raises a UserError if an existing index was made with other settings than those that are given."""
    given, width = f"--index={flags.index}", found.vectors.shape[1]
    if embedder.width != width:
        raise UserError(
            f"{given}: its vectors have {width} numbers, and those of {checkpoint} have {embedder.width}; "
            f"{_advice(found, checkpoint)}"
        )
    if flags.document_prompt is not None:
        prefix = _prompt(embedder, flags, "document_prompt")
        if found.settings["prefix"] != prefix:
            raise UserError(
                f"{given}: made with {found.settings['prefix']!r} before each document, and now it is "
                f"{prefix!r}; {index.ANEW}"
            )


def _check_fingerprint(found: index.Index, made_by: dict[str, Any], checkpoint: str, directory: str) -> None:
    """Raises a UserError if an existing index was made with a model whose vectors are others.

    Args:
        found: the index. Of one by an earlier version, which did not record the weights, another path is
            logged.
        made_by: the fingerprint of the model that is given.
        checkpoint: its path.
        directory: that of the index, for messages.
    """
    if differences := fingerprint.differences(found.settings, made_by):
        raise UserError(
            f"--index={directory}: made with another model than {checkpoint}: {'; '.join(differences)}; "
            f"{_advice(found, checkpoint)}"
        )
    if not found.settings.get("weights") and _has_moved(found, checkpoint):
        log(
            f"warning: {directory} was made with {found.settings['checkpoint']}; if {checkpoint} is another "
            f"model, the scores mean nothing: {index.ANEW}"
        )


def _has_moved(found: index.Index, checkpoint: str) -> bool:
    """Returns whether a checkpoint is at another path than that with which an index was made."""
    return files.absolute(checkpoint) != found.settings["checkpoint"]


def _advice(found: index.Index, checkpoint: str) -> str:
    """Returns what to do if the vectors of a checkpoint are not those of an index, to end a message."""
    if not _has_moved(found, checkpoint):
        return index.ANEW
    return f"leave --checkpoint out to use {found.settings['checkpoint']}, or {index.ANEW}"


def _make(
    flags: absl_flags.FlagValues, embedder: embedding.Embedder, checkpoint: str, made_by: dict[str, Any]
) -> index.Index:
    prefix = _prompt(embedder, flags, "document_prompt")
    with Progress() as progress:
        progress.start("embedding", embedding_files.count_lines(flags.corpus), "documents")
        return index.make(
            flags.index,
            corpus.read(flags.corpus, flags.text),
            embedder,
            files.absolute(checkpoint),
            _name(flags.corpus),
            field=flags.text,
            prefix=prefix,
            made_by=made_by,
            graph=flags.approximate,
            progress=progress.at,
            log=lambda line: log(f"{line}{embedder.engine.unknown}"),
        )


def _name(corpus: str) -> str:
    """Returns the name of a corpus in an index: the path, or "-" for standard input."""
    return corpus if corpus == "-" else files.absolute(corpus)


def _prompt(embedder: embedding.Embedder, flags: absl_flags.FlagValues, flag: str) -> str:
    """Returns the text of a prompt: the one that the flag names, or that of the model."""
    given = flags[flag].value
    if given is None:
        return getattr(embedder.sentence, flag)
    try:
        return embedder.sentence.prompt(given)
    except UserError as error:
        raise UserError(f"--{flag}={given}: {error}") from None


def _batches(flags: absl_flags.FlagValues) -> Iterator[list[corpus.Document]]:
    """Yields the queries, those of standard input one by one."""
    if flags.query:
        yield [corpus.Document(str(number), text) for number, text in enumerate(flags.query)]
        return
    queries = corpus.read(flags.queries or "-", flags.text, "--queries")
    while batch := list(itertools.islice(queries, _BATCH if flags.queries else 1)):
        yield batch


def _show(query: corpus.Document, results: list[index.Result], as_json: bool) -> None:
    if as_json:
        found = [{"id": one.document.id, "score": one.score, "text": one.document.text} for one in results]
        line = {"id": query.id, "query": query.text, "results": found}
        print(json.dumps(line, ensure_ascii=False), flush=True)
        return
    print(query.text)
    for rank, one in enumerate(results, 1):
        text = " ".join(one.document.text.split())
        text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
        print(f"{rank:>4}  {one.score:7.4f}  {one.document.id:>8}  {text}")
    sys.stdout.flush()
