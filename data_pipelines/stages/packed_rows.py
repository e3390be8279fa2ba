"""Makes rows of the packed schema: sequences are packed into rows by best fit, in a bounded window."""

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

from bert_jax.data import packed, tfrecord
from bert_jax.data.packed import PackedSequence, best_fit
from data_pipelines import sorted_runs
from data_pipelines.stages import buckets, pairs

WINDOW = 1 << 15
_FULL_ENOUGH = 0.98


def make_rows(task: buckets.RowsTask) -> dict[str, Any]:
    """Writes the packed rows of a bucket and returns their counts, which `manifests.merge_splits` sums."""
    tokenizer = task.tokenizer
    dtype = packed.id_dtype(tokenizer.vocab_size)
    bucket, settings, length = task.bucket, task.settings, task.settings["max_seq_length"]
    rng = task.rng()
    documents = sorted_runs.read_documents(task.runs, bucket.low, bucket.high, dtype)
    rng.shuffle(documents)
    lengths, per_row = [0] * (length + 1), [0] * (settings["max_sequences_per_row"] + 1)
    counts = dict.fromkeys(("rows", "sequences", "tokens", "labeled", "random_next"), 0)
    counts["documents"] = len(documents)

    def sequences() -> Iterator[PackedSequence]:
        layout = tokenizer.layout
        if settings["full_sentences"] or settings.get("full_rows"):
            room = layout.room(length, pair=False)
            passes = _passes(documents, task.passes, rng)
            fill = pairs.full_sentences if settings["full_sentences"] else pairs.full_rows
            made = fill(passes, room, tokenizer.sep_id)
        else:
            factors = settings["short_seq_prob"], task.passes
            made = pairs.make_pairs(documents, length, rng, *factors, settings["nsp"], layout.template)
        for pair in made:
            second = pair.second or None
            ids = layout.row(pair.first, second).astype(dtype)
            first_length = layout.first_length(len(pair.first), second is not None)
            yield PackedSequence(ids, first_length, pair.label)

    def rows() -> Iterator[bytes]:
        # This order has a separate generator, because packing reads sequences ahead of the rows it yields.
        order = task.rng("/rows")
        for row in pack(sequences(), length, settings["max_sequences_per_row"], order):
            size = sum(len(sequence.ids) for sequence in row)
            per_row[len(row)] += 1
            counts["sequences"] += len(row)
            counts["tokens"] += size
            for sequence in row:
                lengths[len(sequence.ids)] += 1
                counts["labeled"] += sequence.next_sentence_label >= 0
                counts["random_next"] += sequence.next_sentence_label == 1
            yield packed.encode_row(row)

    counts["rows"], size = tfrecord.write_records(task.output, rows())
    figures = {"sequence_lengths": lengths, "sequences_per_row": per_row}
    return counts | figures | {"bytes": size, "files": []}


def _passes(documents: list[sorted_runs.StoredDocument], passes: float, rng: random.Random) -> Iterator[Any]:
    """Yields the documents `passes` times, and shuffles them before each pass except the first."""
    for number in range(round(passes * len(documents))):
        if number and number % len(documents) == 0:
            rng.shuffle(documents)
        yield documents[number % len(documents)]


def pack(
    sequences: Iterable[PackedSequence],
    max_seq_length: int,
    max_sequences: int,
    rng: random.Random,
    window: int = WINDOW,
) -> Iterator[list[PackedSequence]]:
    """Packs each sequence, of at most `max_seq_length` tokens, into exactly one row.

    A `window` of sequences is packed together. Up to half as many, from rows that are less than 98% full, are
    packed again in the next window. The rows of a window, which best fit sorts by their longest sequence, are
    shuffled.
    """
    sequences = iter(sequences)
    waiting: list[PackedSequence] = []
    while True:
        taken = list(itertools.islice(sequences, window))
        last = len(taken) < window
        full: list[list[PackedSequence]] = []
        sparse: list[list[PackedSequence]] = []
        held = waiting + taken
        for places in best_fit([len(sequence.ids) for sequence in held], max_seq_length, max_sequences):
            row = [held[place] for place in places]
            tokens = sum(len(sequence.ids) for sequence in row)
            (full if last or tokens >= _FULL_ENOUGH * max_seq_length else sparse).append(row)
        waiting = []
        for row in reversed(sparse):  # the rows packed last are the emptiest
            if len(waiting) + len(row) <= window // 2:
                waiting.extend(row)
            else:
                full.append(row)
        rng.shuffle(full)
        yield from full
        if last:
            return
