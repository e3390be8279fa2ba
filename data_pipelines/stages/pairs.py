"""Makes sequences of documents: next-sentence pairs, sentence-order pairs (ALBERT), or single segments.

Next-sentence pairs use the same random numbers as google-research/bert (create_pretraining_data.py).
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bert_jax.tokenization import templates

NSP_MODES = ("next", "sop", "none")
_REDRAWS = 10

Document = Sequence[Sequence[int]]  # the token ids of its sentences, none of which is empty


class Pair(NamedTuple):
    """Segments A and B, without special tokens."""

    first: list[int]
    second: list[int]  # empty if there is no B
    label: int  # 1: B is from another document, or A and B are swapped; 0: B follows A; -1: no B


def shortest(template: templates.Template) -> int:
    """Returns the minimum `max_seq_length`, which leaves room for one token of A and one of B."""
    return template.special_count(pair=True) + 2


def make_pairs(
    documents: Sequence[Document],
    max_seq_length: int,
    rng: random.Random,
    short_seq_prob: float = 0.1,
    passes: float = 1,
    nsp: str = "next",
    template: templates.Template = templates.BERT,
) -> Iterator[Pair]:
    """Yields the pairs of passes over documents, in order; the last pass may be incomplete.

    `rng` is used in the order of the reference, so a caller that samples the masks of a pair from it before
    it requests the next pair gets the instances of the reference. `nsp` is "next" for next-sentence pairs,
    which need two documents; "sop" if B always follows A in the text, and the two are swapped half the time
    (ALBERT, Lan et al. 2020, section 3.1); "none" for A only. `short_seq_prob` is the probability of a
    shorter target length.
    """
    for number in range(round(passes * len(documents))):
        index = number % len(documents)
        if nsp == "none":
            budget = template.room(max_seq_length, pair=False)
            target = _target(budget, rng, short_seq_prob)
            for segment in _segments(documents[index], target, budget):
                yield Pair(segment, [], -1)
        else:
            room = template.room(max_seq_length, pair=True)
            yield from document_pairs(documents, index, room, rng, short_seq_prob, nsp == "sop")


def full_sentences(documents: Iterable[Document], room: int, sep_id: int) -> Iterator[Pair]:
    """Yields segments of whole sentences that may cross document boundaries, which are marked by [SEP].

    This is RoBERTa's FULL-SENTENCES (Liu et al. 2019, section 4.2). Only a sentence that is longer than
    `room`, the maximum number of tokens in a segment, is split.
    """
    waiting: list[int] = []
    for document in documents:
        if waiting:
            waiting.append(sep_id)
        for sentence in cut(document, room):
            if len(waiting) + len(sentence) > room:
                yield Pair(waiting[:-1] if waiting[-1] == sep_id else waiting, [], -1)
                waiting = []
            waiting.extend(sentence)
    if waiting:
        yield Pair(waiting, [], -1)


def full_rows(documents: Iterable[Document], room: int, sep_id: int) -> Iterator[Pair]:
    """Yields segments of exactly `room` tokens of continuous text; the last one may be shorter.

    A sentence is cut where the segment is full. A [SEP] separates two documents.
    """
    waiting: list[int] = []
    for number, document in enumerate(documents):
        if number:
            waiting.append(sep_id)
        for position in range(len(document)):
            waiting.extend(document[position])
            complete = len(waiting) - len(waiting) % room
            for start in range(0, complete, room):
                yield Pair(waiting[start : start + room], [], -1)
            waiting = waiting[complete:]
    if waiting:
        yield Pair(waiting, [], -1)


def _segments(document: Document, target: int, most: int) -> Iterator[list[int]]:
    """Yields segments of sentences, of at most `target` tokens or one sentence of at most `most` tokens."""
    segment: list[int] = []
    for sentence in cut(document, most):
        if segment and len(segment) + len(sentence) > target:
            yield segment
            segment = []
        segment.extend(sentence)
    yield segment


def cut(document: Document, most: int) -> Iterator[Sequence[int]]:
    """Yields the sentences of a document; longer ones in sections of at most `most` tokens."""
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
    """Yields the pairs of one document.

    A chunk of sentences that reaches the target length is split at random into A and the rest. B is the rest
    or, half the time and always if there is no rest, sentences of another document; the next chunk then
    starts with the rest. With `swap`, B is always the rest, and A and B are swapped half the time. A chunk of
    one sentence then has only A. (ALBERT gives it a random B, but such a pair is neither in order nor
    swapped.) A pair has at most `room` tokens, without special tokens.
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
    """Drops tokens at the front or the back of the longer segment (B if equal) until `budget` are left."""
    first_start, second_start, first_end, second_end = 0, 0, len(first), len(second)
    for _ in range(len(first) + len(second) - budget):
        front = rng.random() < 0.5
        if first_end - first_start > second_end - second_start:
            first_start, first_end = first_start + front, first_end - (not front)
        else:
            second_start, second_end = second_start + front, second_end - (not front)
    return first[first_start:first_end], second[second_start:second_end]
