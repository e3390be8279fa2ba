"""Next-sentence pairs as google-research/bert makes them (create_pretraining_data.py), draw for draw."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
SHORTEST = 5  # the max_seq_length that leaves room for one token of A and one of B
_REDRAWS = 10

Document = Sequence[Sequence[int]]  # the token ids of its sentences; none of them is empty


class Pair(NamedTuple):
    """Sentences A and B, without special tokens."""

    first: list[int]
    second: list[int]
    random_next: bool  # B is from another document: next-sentence label 1


def make_pairs(
    documents: Sequence[Document],
    max_seq_length: int,
    rng: random.Random,
    short_seq_prob: float = 0.1,
    dupe_factor: int = 1,
) -> Iterator[Pair]:
    """Goes `dupe_factor` times through all documents, in order.

    Args:
        documents: at least two, none without a sentence. Only `len()` and items of a document are used, so
            that it may read its sentences when they are asked for.
        max_seq_length: at least `SHORTEST`.
        rng: what the reference calls `rng`. It is used in the reference's order, so a caller that draws a
            pair's masks from it before asking for the next pair gets the reference's instances.
    """
    for _ in range(dupe_factor):
        for index in range(len(documents)):
            yield from document_pairs(documents, index, max_seq_length, rng, short_seq_prob)


def document_pairs(
    documents: Sequence[Document], index: int, max_seq_length: int, rng: random.Random, short_seq_prob: float
) -> Iterator[Pair]:
    """The pairs of one document.

    Sentences are taken until they reach the target length, and split at random into A and the rest. B is the
    rest, or, half the time and whenever there is no rest, sentences of another document; the rest is then
    used again.
    """
    document = documents[index]
    budget = max_seq_length - SPECIAL_TOKENS
    target = rng.randint(2, budget) if rng.random() < short_seq_prob else budget
    start, count = 0, len(document)
    while start < count:
        chunk, length = [], 0
        while start + len(chunk) < count and length < target:
            sentence = document[start + len(chunk)]
            chunk.append(sentence)
            length += len(sentence)
        split = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
        first = [token for sentence in chunk[:split] for token in sentence]
        random_next = len(chunk) == 1 or rng.random() < 0.5
        if random_next:
            second = _random_second(documents, index, target - len(first), rng)
            start += split
        else:
            second = [token for sentence in chunk[split:] for token in sentence]
            start += len(chunk)
        yield Pair(*_truncated(first, second, budget, rng), random_next)


def _random_second(documents: Sequence[Document], index: int, wanted: int, rng: random.Random) -> list[int]:
    """At least `wanted` tokens of another document from a random sentence on, or what it has from there."""
    for _ in range(_REDRAWS):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    document, second = documents[other], []
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
