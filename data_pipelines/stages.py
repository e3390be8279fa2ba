"""The stages from a corpus to record files; each writes files that depend on its task only.

1. `tokenize` reads byte ranges of the input and writes runs: documents as token ids, sorted by key, a hash of
   the document's name.
2. `plan` selects the held-out documents and the buckets, which are ranges of keys, from the counts of all
   runs.
3. `make_rows` makes sequences of the documents of a bucket, packs them into rows, and writes one record file.
4. `make_shard` copies an equal share of all rows from these files into one shard.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, packed, tfrecord
from data_pipelines import cleaning, minhash, packing, pairs, readers, sentences, sorted_runs

HISTOGRAM_BITS = 16
MIN_BUCKET_DOCUMENTS = 64  # enough to choose a random next sentence from, also among books
BUCKET_TOKENS = (8 << 20, 64 << 20)  # target size of a bucket: the minimum and the maximum
_MAX_BUCKETS = 1024  # unless the buckets would exceed their maximum size
MOST_BUCKET_DOCUMENTS = 1 << 20  # a document in memory takes about 600 bytes besides its tokens
_RUN_TOKENS = 32 << 20
_RUN_DOCUMENTS = 1 << 19
_RUN_FINGERPRINT_BYTES = 128 << 20
_BATCH_CHARACTERS = 1 << 18
_MAX_SENTENCE_TOKENS = 10_000

# Counts of the text; CLEANING_COUNTS are those of the readers (see readers.read_documents).
TEXT_COUNTS = ("documents", "empty_documents", "sentences", "tokens", "unknown_tokens")
CLEANING_COUNTS = readers.COUNTS


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The arguments with which a worker loads the tokenizer."""

    path: str
    lower_case: bool
    strip_accents: bool

    def load(self) -> tokenization.Tokenizer:
        return _load_tokenizer(self)


@functools.lru_cache(maxsize=1)
def _load_tokenizer(vocabulary: Vocabulary) -> tokenization.Tokenizer:
    return tokenization.load(
        vocabulary.path, lower_case=vocabulary.lower_case, strip_accents=vocabulary.strip_accents
    )


@dataclasses.dataclass(frozen=True)
class TokenizeTask:
    """The arguments of `tokenize`: ranges of the corpus whose documents one worker sorts into runs."""

    ranges: tuple[readers.Range, ...]
    input_format: str
    vocabulary: Vocabulary
    output: str  # the runs are written to OUTPUT-0000, ...
    cleaning: cleaning.Settings | None = None
    fields: readers.Fields = readers.Fields()  # noqa: RUF009 (frozen)


def tokenize(task: TokenizeTask) -> dict[str, Any]:
    """Tokenizes the documents of some byte ranges, writes them as sorted runs, and counts them.

    A text of over 10,000 tokens, which is not a real sentence, is split into sentences of that length,
    because a segment is built from whole sentences, and truncating it would drop most of such a text one
    token at a time.
    """
    tokenizer = task.vocabulary.load()
    dtype = packed.id_dtype(tokenizer.vocab_size)
    # The numbers of documents and of tokens, by the first bits of the document keys.
    histogram = np.zeros((1 << HISTOGRAM_BITS, 2), np.int64)
    keys: list[int] = []
    counts = dict.fromkeys(TEXT_COUNTS, 0)
    cleaned: collections.Counter[str] = collections.Counter()
    runs: list[str] = []
    writer, marks = sorted_runs.RunWriter(dtype), _new_marks(task.cleaning)

    def flush() -> tuple[sorted_runs.RunWriter, minhash.Writer | None]:
        runs.append(f"{task.output}-{len(runs):04d}")
        writer.write(runs[-1])
        if marks:
            marks.write(runs[-1])
        return sorted_runs.RunWriter(dtype), _new_marks(task.cleaning)

    documents = itertools.chain.from_iterable(
        readers.read_documents(range_, task.input_format, cleaned, task.fields) for range_ in task.ranges
    )
    cleaner = cleaning.Cleaner(task.cleaning) if task.cleaning else None
    if cleaner:
        documents = filter(None, map(cleaner, documents))
    for document, encoded in _encoded(documents, tokenizer):
        if not encoded:
            counts["empty_documents"] += 1
            continue
        key = sorted_runs.document_key(document.key)
        tokens = sum(map(len, encoded))
        histogram[key >> (sorted_runs.KEY_BITS - HISTOGRAM_BITS)] += (1, tokens)
        keys = sorted([*keys, key])[:2]
        counts["documents"] += document.part == 0
        counts["sentences"] += len(encoded)
        counts["tokens"] += tokens
        counts["unknown_tokens"] += sum(sentence.count(tokenizer.unk_id) for sentence in encoded)
        writer.add(key, encoded)
        if marks:
            marks.add(key, document, encoded, tokenizer.unk_id)
        full = writer.size >= _RUN_TOKENS or writer.documents >= _RUN_DOCUMENTS
        if full or (marks and marks.size >= _RUN_FINGERPRINT_BYTES):
            writer, marks = flush()
    if writer.size:
        flush()
    # Written to a file, since those of all tasks together would not fit into the memory of the planner.
    sorted_runs.write_histogram(f"{task.output}.histogram", histogram)
    counts |= {name: cleaned[name] for name in CLEANING_COUNTS}
    if cleaner:
        counts = counts | {"cleaning": cleaner.counts, "stored_documents": int(histogram[:, 0].sum())}
    return counts | {
        "runs": runs,
        "smallest_keys": keys,
        "histogram": f"{task.output}.histogram",
    }


def _new_marks(settings: cleaning.Settings | None) -> minhash.Writer | None:
    if settings and not {"exact", "near"}.isdisjoint(settings.steps):
        return minhash.Writer(settings.steps, settings.near_duplicate_threshold)
    return None


def _encoded(
    documents: Iterable[readers.Document], tokenizer: tokenization.Tokenizer
) -> Iterator[tuple[readers.Document, list[list[int]]]]:
    """Yields each document with the token ids of its sentences; it encodes many sentences per call."""
    waiting: list[tuple[readers.Document, int]] = []
    texts: list[str] = []
    size = 0

    def encode() -> Iterator[tuple[readers.Document, list[list[int]]]]:
        ids = iter(tokenizer.encode_batch(texts))
        for document, count in waiting:
            yield document, [part for one in itertools.islice(ids, count) for part in _cut(one)]

    for document in documents:
        split = sentences.split(document)
        waiting.append((document, len(split)))
        texts.extend(split)
        size += sum(map(len, split))
        if size >= _BATCH_CHARACTERS:
            yield from encode()
            waiting, texts, size = [], [], 0
    yield from encode()


def _cut(ids: list[int]) -> list[list[int]]:
    if len(ids) <= _MAX_SENTENCE_TOKENS:
        return [ids] if ids else []
    return [ids[start : start + _MAX_SENTENCE_TOKENS] for start in range(0, len(ids), _MAX_SENTENCE_TOKENS)]


@dataclasses.dataclass(frozen=True)
class Bucket:
    """The documents with keys in [low, high), from which rows are made together."""

    split: str
    number: int
    low: int
    high: int


def plan(results: Sequence[dict[str, Any]], eval_fraction: float) -> list[Bucket]:
    """Splits the keys into the held-out documents and the rest, and each of these into buckets.

    Args:
        results: the results of `tokenize` for the whole corpus.
        eval_fraction: the share of the keys that is held out. If fewer than two documents have such keys, the
            two with the smallest keys are held out, because next-sentence prediction needs two. Of fewer than
            8 documents, none is held out.

    Returns:
        The buckets of the split `eval`, if there are any, and those of `train`.
    """
    histogram = np.zeros((1 << HISTOGRAM_BITS, 2), np.int64)
    for result in results:
        sorted_runs.add_histogram(result["histogram"], histogram)
    documents, tokens = (int(total) for total in histogram.sum(axis=0))
    shift = sorted_runs.KEY_BITS - HISTOGRAM_BITS
    eval_bins = math.ceil(eval_fraction * (1 << HISTOGRAM_BITS))
    threshold = eval_bins << shift
    if eval_bins and documents < 8:
        threshold = 0
    elif eval_bins and histogram[:eval_bins, 0].sum() < 2:
        threshold = sorted(key for result in results for key in result["smallest_keys"])[1] + 1
    smallest, largest = BUCKET_TOKENS
    size = min(max(smallest, tokens // _MAX_BUCKETS), largest)
    edges = {"eval": (0, threshold), "train": (threshold, 1 << sorted_runs.KEY_BITS)}
    return [
        bucket
        for split, (low, high) in edges.items()
        if high > low
        for bucket in _buckets(split, low, high, histogram, size)
    ]


def _buckets(split: str, low: int, high: int, histogram: np.ndarray, size: int) -> list[Bucket]:
    shift = sorted_runs.KEY_BITS - HISTOGRAM_BITS
    edges, documents, tokens = [low], 0, 0
    for number in range(low >> shift, -(-high >> shift)):
        documents += int(histogram[number, 0])
        tokens += int(histogram[number, 1])
        if (tokens >= size and documents >= MIN_BUCKET_DOCUMENTS) or documents >= MOST_BUCKET_DOCUMENTS:
            edges.append(min(high, (number + 1) << shift))
            documents = tokens = 0
    short = tokens < size // 2 and documents < MOST_BUCKET_DOCUMENTS // 2
    if len(edges) > 1 and (documents < MIN_BUCKET_DOCUMENTS or short):
        edges.pop()  # the rest is too small for a bucket of its own
    if edges[-1] < high:
        edges.append(high)
    return [Bucket(split, number, *edge) for number, edge in enumerate(itertools.pairwise(edges))]


@dataclasses.dataclass(frozen=True)
class RowsTask:
    """The arguments of `make_rows`: a bucket of documents from which one worker makes rows."""

    bucket: Bucket
    runs: tuple[str, ...]
    vocabulary: Vocabulary
    settings: Mapping[str, Any]  # those in the manifest
    output: str

    def rng(self, purpose: str = "") -> random.Random:
        """Returns the random number generator of the bucket.

        In google records, the first bucket of `train` has the same generator as the reference.
        """
        seed, bucket = self.settings["seed"], self.bucket
        if (self.settings["schema"], bucket.split, bucket.number) == (google.SCHEMA, "train", 0):
            return random.Random(seed)
        return random.Random(f"{seed}/{bucket.split}/{bucket.number}{purpose}")


def make_rows(task: RowsTask) -> dict[str, Any]:
    """Writes the packed rows of a bucket and returns their counts, which `packed.merge_splits` sums."""
    tokenizer = task.vocabulary.load()
    dtype = packed.id_dtype(tokenizer.vocab_size)
    bucket, settings, length = task.bucket, task.settings, task.settings["max_seq_length"]
    rng = task.rng()
    documents = sorted_runs.read_documents(task.runs, bucket.low, bucket.high, dtype)
    rng.shuffle(documents)
    lengths, per_row = [0] * (length + 1), [0] * (settings["max_sequences_per_row"] + 1)
    counts = {"documents": len(documents), "rows": 0, "sequences": 0, "tokens": 0, "random_next": 0}

    def sequences() -> Iterator[packed.PackedSequence]:
        layout = tokenizer.layout
        if settings["full_sentences"]:
            room = layout.room(length, pair=False)
            passes = _passes(documents, settings["dupe_factor"], rng)
            made = pairs.full_sentences(passes, room, tokenizer.sep_id)
        else:
            factors = settings["short_seq_prob"], settings["dupe_factor"]
            made = pairs.make_pairs(documents, length, rng, *factors, settings["nsp"], layout.template)
        for pair in made:
            second = pair.second or None
            ids = layout.row(pair.first, second).astype(dtype)
            first_length = layout.first_length(len(pair.first), second is not None)
            lengths[len(ids)] += 1
            counts["random_next"] += pair.label == 1
            yield packed.PackedSequence(ids, first_length, pair.label)

    def rows() -> Iterator[bytes]:
        # This order has a separate generator, because packing draws sequences ahead of the rows it yields.
        order = task.rng("/rows")
        for row in packing.pack(sequences(), length, settings["max_sequences_per_row"], order):
            per_row[len(row)] += 1
            counts["sequences"] += len(row)
            counts["tokens"] += sum(len(sequence.ids) for sequence in row)
            yield packed.encode_row(row)

    counts["rows"], size = tfrecord.write_records(task.output, rows())
    figures = {"sequence_lengths": lengths, "sequences_per_row": per_row}
    return counts | figures | {"bytes": size, "files": []}


def _passes(documents: list[sorted_runs.StoredDocument], count: int, rng: random.Random) -> Iterator[Any]:
    """Yields the documents `count` times, and shuffles them before each pass but the first."""
    for number in range(count):
        if number:
            rng.shuffle(documents)
        yield from documents


@dataclasses.dataclass(frozen=True)
class ShardTask:
    """The arguments of `make_shard`: the rows of one output file."""

    parts: tuple[tuple[str, int, int, int], ...]  # (record file, first row, end row, step)
    output: str


def share_rows(
    parts: Sequence[tuple[str, int]], shards: int, round_robin: bool = False
) -> list[tuple[tuple[str, int, int, int], ...]]:
    """Divides rows evenly among shards.

    Args:
        parts: (record file, number of rows) pairs.
        shards: the number of shards.
        round_robin: whether row i of all rows goes to shard i % shards; otherwise, each shard gets
            consecutive rows.

    Returns:
        The `ShardTask.parts` of each shard.
    """
    total = sum(rows for _, rows in parts)
    edges = [total * number // shards for number in range(shards + 1)]
    shares: list[list[tuple[str, int, int, int]]] = [[] for _ in range(shards)]
    begin = 0
    for path, rows in parts:
        for number, (share, (low, high)) in enumerate(zip(shares, itertools.pairwise(edges), strict=True)):
            first, end, step = max(low - begin, 0), min(high - begin, rows), 1
            if round_robin:
                first, end, step = (number - begin) % shards, rows, shards
            if first < end:
                share.append((path, first, end, step))
        begin += rows
    return [tuple(share) for share in shares]


def make_shard(task: ShardTask) -> dict[str, Any]:
    """Copies the rows of a shard into one record file, and checks their CRCs."""
    parts = ((tfrecord.RecordFile(path), np.arange(*numbers)) for path, *numbers in task.parts)
    count, size = tfrecord.copy_records(task.output, parts)
    return {"rows": count, "bytes": size}


def file_digest(path: str) -> dict[str, Any]:
    """Returns the size and the SHA-256 of a file."""
    return readers.file_digest(path)
