"""Documents to sequences: next-sentence pairs as google-research/bert makes them
(create_pretraining_data.py), draw for draw; ALBERT's pairs in or out of order; and single segments.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.tokenization import templates

NSP_MODES = ("next", "sop", "none")
# The max_seq_length that leaves room for one token of A and one of B.
SHORTEST = templates.BERT.special_count(pair=True) + 2
_REDRAWS = 10

Document = Sequence[Sequence[int]]  # the token ids of its sentences; none of them is empty


class Pair(NamedTuple):
    """Segments A and B, without special tokens."""

    first: list[int]
    second: list[int]  # empty where there is no B
    label: int  # 1: B is from another document, or A and B are swapped; 0: B follows A; -1: no B


def make_pairs(
    documents: Sequence[Document],
    max_seq_length: int,
    rng: random.Random,
    short_seq_prob: float = 0.1,
    dupe_factor: int = 1,
    nsp: str = "next",
    template: templates.Template = templates.BERT,
) -> Iterator[Pair]:
    """Goes `dupe_factor` times through all documents, in order.

    Args:
        documents: none without a sentence, and at least two for "next". Only `len()` and items of a document
            are used, so that it may read its sentences when they are asked for.
        max_seq_length: at least `SHORTEST`.
        rng: what the reference calls `rng`. It is used in the reference's order, so a caller that draws a
            pair's masks from it before asking for the next pair gets the reference's instances.
        nsp: "next"; "sop": B always follows A in the text, and half the time the two change places (ALBERT,
            Lan et al. 2020, section 3.1); "none": A alone.
        template: how a sequence is put together.
    """
    for _ in range(dupe_factor):
        for index in range(len(documents)):
            if nsp == "none":
                budget = template.room(max_seq_length, pair=False)
                target = _target(budget, rng, short_seq_prob)
                for segment in _segments(documents[index], target, budget):
                    yield Pair(segment, [], -1)
            else:
                room = template.room(max_seq_length, pair=True)
                yield from document_pairs(documents, index, room, rng, short_seq_prob, nsp == "sop")


def full_sentences(documents: Iterable[Document], room: int, sep_id: int) -> Iterator[Pair]:
    """Yields rows of whole sentences that go on over the ends of documents, which a [SEP] marks (RoBERTa's
    FULL-SENTENCES, Liu et al. 2019, section 4.2). Only a sentence that no row holds is cut.

    Args:
        documents: in their order.
        room: tokens of a row without the special ones around it.
        sep_id: the token between two documents.
    """
    waiting: list[int] = []
    for document in documents:
        if waiting:
            waiting.append(sep_id)
        for sentence in _cut(document, room):
            if len(waiting) + len(sentence) > room:
                yield Pair(waiting[:-1] if waiting[-1] == sep_id else waiting, [], -1)
                waiting = []
            waiting.extend(sentence)
    if waiting:
        yield Pair(waiting, [], -1)


def _segments(document: Document, target: int, most: int) -> Iterator[list[int]]:
    """Runs of sentences of at most `target` tokens, or one longer sentence; one of over `most` is cut."""
    segment: list[int] = []
    for sentence in _cut(document, most):
        if segment and len(segment) + len(sentence) > target:
            yield segment
            segment = []
        segment.extend(sentence)
    yield segment


def _cut(document: Document, most: int) -> Iterator[Sequence[int]]:
    for number in range(len(document)):
        sentence = document[number]
        for start in range(0, len(sentence), most):
            yield sentence[start : start + most]


def _target(budget: int, rng: random.Random, short_seq_prob: float) -> int:
    return rng.randint(2, budget) if rng.random() < short_seq_prob else budget


def document_pairs(
    documents: Sequence[Document],
    index: int,
    room: int,
    rng: random.Random,
    short_seq_prob: float,
    swap: bool = False,
) -> Iterator[Pair]:
    """Yields the pairs of one document, of at most `room` tokens without the special ones.

    Sentences are taken until they reach the target length, and split at random into A and the rest. B is the
    rest, or, half the time and whenever there is no rest, sentences of another document; the rest is then
    used again. With `swap`, B is always the rest, half the time before A; a chunk of one sentence, which
    ALBERT gives a random B, is A alone: a pair would not be of sentences in order or out of order.
    """
    document = documents[index]
    target = _target(room, rng, short_seq_prob)
    start, count = 0, len(document)
    while start < count:
        chunk: list[Sequence[int]] = []
        length = 0
        while start + len(chunk) < count and length < target:
            sentence = document[start + len(chunk)]
            chunk.append(sentence)
            length += len(sentence)
        split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first = [token for sentence in chunk[:split] for token in sentence]
        if swap:
            second = [token for sentence in chunk[split:] for token in sentence]
            start += len(chunk)
            label = int(rng.random() < 0.5) if second else -1
            if label == 1:
                first, second = second, first
        elif len(chunk) == 1 or rng.random() < 0.5:
            second = _random_second(documents, index, target - len(first), rng)
            start += split
            label = 1
        else:
            second = [token for sentence in chunk[split:] for token in sentence]
            start += len(chunk)
            label = 0
        yield Pair(*_truncated(first, second, room, rng), label)


def _random_second(documents: Sequence[Document], index: int, wanted: int, rng: random.Random) -> list[int]:
    """At least `wanted` tokens of another document from a random sentence on, or what it has from there."""
    for _ in range(_REDRAWS):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document = documents[other]
    second: list[int] = []
    for position in range(rng.randint(0, len(document) - 1), len(document)):
        second.extend(document[position])
        if len(second) >= wanted:
            break
    return second


def _truncated(
    first: list[int], second: list[int], budget: int, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Drops tokens of the longer side (B's, if equal), each from its front or its back with equal chance."""
    first_start, second_start, first_end, second_end = 0, 0, len(first), len(second)
    for _ in range(len(first) + len(second) - budget):
        front = rng.random() < 0.5
        if first_end - first_start > second_end - second_start:
            first_start, first_end = first_start + front, first_end - (not front)
        else:
            second_start, second_end = second_start + front, second_end - (not front)
    return first[first_start:first_end], second[second_start:second_end]
