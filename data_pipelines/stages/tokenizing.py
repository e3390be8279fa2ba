"""Tokenizes documents and writes them as sorted runs."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bert_jax import tokenization
from bert_jax.data import packed
from bert_jax.io import files
from data_pipelines import cleaning, readers, sentences, sorted_runs
from data_pipelines.cleaning import duplicates
from data_pipelines.stages import pairs

_RUN_TOKENS = 32 << 20
_RUN_DOCUMENTS = 1 << 19
_RUN_FINGERPRINT_BYTES = 128 << 20
_BATCH_CHARACTERS = 1 << 18
_MAX_SENTENCE_TOKENS = 10_000

TEXT_COUNTS = ("documents", "empty_documents", "sentences", "tokens", "unknown_tokens")


@dataclasses.dataclass(frozen=True)
class TokenizeTask:
    """The arguments of `tokenize`: ranges of the corpus whose documents one worker sorts into runs."""

    ranges: tuple[readers.Range, ...]
    input_format: str
    tokenizer: tokenization.Tokenizer
    output: str  # the runs are written to OUTPUT-0000, ...
    cleaning: cleaning.Settings | None = None
    text_field: str = readers.TEXT_FIELD
    sentence_language: str = "en"


def tokenize(task: TokenizeTask) -> dict[str, Any]:
    """Tokenizes the documents of some byte ranges, writes them as sorted runs, and counts them.

    A sentence of over 10,000 tokens is split, because truncating a pair takes time for each token.

    Returns:
        The counts; `smallest_keys`, the two smallest keys of documents; `runs` and `histogram`, the names of
        files next to `task.output`. The names have no folder, because an interrupted build may be moved.
    """
    tokenizer = task.tokenizer
    dtype = packed.id_dtype(tokenizer.vocab_size)
    # The numbers of documents and of tokens, by the first bits of the document keys.
    histogram = sorted_runs.new_histogram()
    keys: list[int] = []
    counts = dict.fromkeys(TEXT_COUNTS, 0)
    cleaned: collections.Counter[str] = collections.Counter()
    runs: list[str] = []
    writer = sorted_runs.RunWriter(dtype)
    marked = task.cleaning if task.cleaning and task.cleaning.finds_duplicates else None
    marks = duplicates.Writer(marked) if marked else None

    def flush() -> None:
        path = f"{task.output}-{len(runs):04d}"
        runs.append(files.name(path))
        writer.write(path)
        if marks:
            marks.write(path)

    spaces = bool(task.cleaning and "unicode" in task.cleaning.steps)
    documents = itertools.chain.from_iterable(
        readers.read_documents(range_, task.input_format, cleaned, task.text_field, spaces)
        for range_ in task.ranges
    )
    cleaner = cleaning.Cleaner(task.cleaning) if task.cleaning else None
    last = ""  # the whole key of the last document
    if cleaner:
        documents = filter(None, map(cleaner, documents))
    for document, encoded in _encoded(documents, tokenizer, task.sentence_language):
        if not encoded:
            counts["empty_documents"] += 1
            continue
        key = sorted_runs.document_key(document.key)
        tokens = sum(map(len, encoded))
        histogram[key >> sorted_runs.BIN_SHIFT] += (1, tokens)
        keys = sorted([*keys, key])[:2]
        begins = document.part == 0 or document.whole_key != last
        last = document.whole_key
        counts["documents"] += begins
        counts["sentences"] += len(encoded)
        counts["tokens"] += tokens
        unknown = sum(sentence.count(tokenizer.unk_id) for sentence in encoded)
        counts["unknown_tokens"] += unknown
        writer.add(key, encoded)
        if marks:
            marks.add(key, document, begins, (tokens, len(encoded), unknown))
        full = writer.size >= _RUN_TOKENS or writer.documents >= _RUN_DOCUMENTS
        if full or (marks and marks.size >= _RUN_FINGERPRINT_BYTES):
            flush()
            writer, marks = sorted_runs.RunWriter(dtype), duplicates.Writer(marked) if marked else None
    if writer.size:
        flush()
    # Written to a file: the histograms of all tasks together would not fit into the planner's memory.
    sorted_runs.write_histogram(f"{task.output}.histogram", histogram)
    counts |= {name: cleaned[name] for name in readers.COUNTS}
    if cleaner:
        counts = counts | {"cleaning": cleaner.counts}
    return counts | {"runs": runs, "smallest_keys": keys, "histogram": files.name(f"{task.output}.histogram")}


def _encoded(
    documents: Iterable[readers.Document], tokenizer: tokenization.Tokenizer, language: str
) -> Iterator[tuple[readers.Document, list[Sequence[int]]]]:
    """Yields each document with the token ids of its sentences; it encodes many sentences per call."""
    waiting: list[tuple[readers.Document, int]] = []
    texts: list[str] = []
    size = 0

    def encode() -> Iterator[tuple[readers.Document, list[Sequence[int]]]]:
        ids = iter(tokenizer.encode_batch(texts))
        for document, count in waiting:
            yield document, list(pairs.cut(list(itertools.islice(ids, count)), _MAX_SENTENCE_TOKENS))

    for document in documents:
        split = sentences.split(document, language)
        # Sentences are joined without anything between them; only the first begins a text.
        split[1:] = [tokenizer.after_space(sentence) for sentence in split[1:]]
        waiting.append((document, len(split)))
        texts.extend(split)
        size += sum(map(len, split))
        if size >= _BATCH_CHARACTERS:
            yield from encode()
            waiting, texts, size = [], [], 0
    yield from encode()
