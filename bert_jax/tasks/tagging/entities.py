"""Tags of words and the entities that they spell: schemes, spans, and scores as conlleval has them.

A tag is O, or a prefix and a type, such as B-PER; the type may be missing. In BIO2 every entity begins with
B, in IOB1 (CoNLL-2003's files) only one that follows another of its type. Both are read alike: B begins an
entity, and so does an I whose predecessor is no B or I of its type. That is what conlleval does with invalid
sequences.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OUTSIDE = "O"
_TAG = re.compile(r"([BIESLU])(?:-(.+))?\Z")
# One word alone is S in IOBES and U in BILOU; the last of several is E and L.
_PREFIXES = {"B": "B", "S": "B", "U": "B", "I": "I", "E": "I", "L": "I"}


class Span(NamedTuple):
    """An entity: its type and the words [start, end)."""

    type: str
    start: int
    end: int


class Counts(NamedTuple):
    """Entities found right, predicted, and there."""

    right: int
    predicted: int
    gold: int

    @property
    def scores(self) -> dict[str, float]:
        """precision, recall and f1; each is 0 where it would be divided by 0."""
        return {
            "f1": 2 * self.right / (self.predicted + self.gold) if self.right else 0.0,
            "precision": self.right / self.predicted if self.predicted else 0.0,
            "recall": self.right / self.gold if self.gold else 0.0,
        }


def are_of_entities(labels: Sequence[str]) -> bool:
    """Returns whether tags spell entities, as B-PER I-PER does, rather than stand for themselves."""
    return labels[0] == OUTSIDE and all(map(is_entity_tag, labels))


def is_entity_tag(tag: str) -> bool:
    return tag == OUTSIDE or _TAG.match(tag) is not None


def split(tag: str) -> tuple[str, str]:
    """("B" or "I", type) of a tag of BIO, IOBES or BILOU; ("O", "") of any other."""
    match = _TAG.match(tag)
    return (_PREFIXES[match[1]], match[2] or "") if match else (OUTSIDE, "")


def join(prefix: str, type: str) -> str:
    return f"{prefix}-{type}" if type else prefix


def to_bio2(tags: Sequence[str]) -> list[str]:
    """The same entities in BIO2; of a valid sequence in IOB1, BIO2, IOBES or BILOU, and of an invalid one as
    conlleval reads it.
    """
    out, previous = [], (OUTSIDE, "")
    for tag in tags:
        prefix, type = split(tag)
        if prefix == "I" and (previous[0] == OUTSIDE or previous[1] != type):
            prefix = "B"
        out.append(OUTSIDE if prefix == OUTSIDE else join(prefix, type))
        previous = (prefix, type)
    return out


def to_iob1(tags: Sequence[str]) -> list[str]:
    """The same entities in IOB1: B only where an entity follows one of its type."""
    out, previous = [], ""
    for tag in to_bio2(tags):
        prefix, type = split(tag)
        follows = previous not in ("", OUTSIDE) and split(previous)[1] == type
        out.append(join("I", type) if prefix == "B" and not follows else tag)
        previous = tag
    return out


def detect_scheme(sentences: Iterable[Sequence[str]]) -> tuple[str, int]:
    """("IOB1", "BIO2" or "IOBES", how many tags are invalid in it): the one that fewer tags contradict."""
    wrong = Counter(IOB1=0, BIO2=0)
    other = 0
    for tags in sentences:
        before, previous = OUTSIDE, ""
        for tag in tags:
            prefix, type = split(tag)
            alone = before == OUTSIDE or previous != type
            wrong["BIO2"] += prefix == "I" and alone
            wrong["IOB1"] += prefix == "B" and alone
            other += tag[0] in "ESLU" and prefix != OUTSIDE
            before, previous = prefix, type
    scheme = "IOB1" if wrong["IOB1"] < wrong["BIO2"] else "BIO2"
    return ("IOBES", wrong["BIO2"]) if other else (scheme, wrong[scheme])


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities of a sentence, in order."""
    found: list[Span] = []
    for place, tag in enumerate(to_bio2(tags)):
        prefix, type = split(tag)
        if prefix == "B":
            found.append(Span(type, place, place + 1))
        elif prefix == "I":
            found[-1] = found[-1]._replace(end=place + 1)
    return found


def count(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Counts]:
    """Exact matches of type and both ends, by type, sorted (Tjong Kim Sang and De Meulder 2003)."""
    right, found, there = Counter(), Counter(), Counter()
    for truth, guess in zip(gold, predicted, strict=True):
        if len(truth) != len(guess):
            raise ValueError(f"{len(truth)} tags and {len(guess)} predictions in a sentence")
        truth, guess = set(spans(truth)), set(spans(guess))
        right.update(span.type for span in truth & guess)
        found.update(span.type for span in guess)
        there.update(span.type for span in truth)
    return {type: Counts(right[type], found[type], there[type]) for type in sorted(found | there)}


def total(counts: Mapping[str, Counts]) -> Counts:
    """Over all types: the micro average."""
    return (
        Counts(*(sum(column) for column in zip(*counts.values(), strict=True))) if counts else Counts(0, 0, 0)
    )


def tag_set(tags: Iterable[str]) -> tuple[str, ...]:
    """O, then B and I of every type, sorted: the labels of a model. A type whose entities all are of one word
    gets its I too, for those of another file.
    """
    types = sorted({split(tag)[1] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(join(prefix, type) for type in types for prefix in "BI"))
