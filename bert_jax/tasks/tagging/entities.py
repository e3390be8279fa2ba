"""Entities encoded by the tags of words: tagging schemes, spans, and the scores of conlleval.

A tag is O, or a prefix and a type, such as B-PER; the type may be missing. In BIO2 every entity begins with
B. In IOB1, the scheme of the CoNLL-2003 files, only an entity directly after another entity of the same type
begins with B. One rule parses both: an entity begins at a B, and at an I whose predecessor is not a B or I of
the same type. In IOBES, an entity also ends with its E or S. conlleval handles invalid sequences in the same
way.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OUTSIDE = "O"
_TAG = re.compile(r"([BIMESLU])(?:-(.+))?\Z")
# A single-word entity has S in IOBES and BMES and U in BILOU. The last word of a longer entity has E in IOBES
# and BMES and L in BILOU.
_PREFIXES = {"B": "B", "S": "B", "U": "B", "I": "I", "M": "I", "E": "I", "L": "I"}
_LAST = "ESLU"  # the prefixes of the last word of an entity


class Span(NamedTuple):
    """An entity: its type, and its words [start, end) in the sentence."""

    type: str
    start: int
    end: int


class Counts(NamedTuple):
    """The numbers of correctly predicted entities, predicted entities and gold entities."""

    right: int
    predicted: int
    gold: int

    @property
    def scores(self) -> dict[str, float]:
        """Returns {"f1": ..., "precision": ..., "recall": ...}, from 0 to 1; 0 for a division by 0."""
        return {
            "f1": 2 * self.right / (self.predicted + self.gold) if self.right else 0.0,
            "precision": self.right / self.predicted if self.predicted else 0.0,
            "recall": self.right / self.gold if self.gold else 0.0,
        }


def is_entity_tag(tag: str) -> bool:
    """Returns whether a tag is O, or has a prefix of BIO, IOBES, BILOU or BMES."""
    return tag == OUTSIDE or _TAG.match(tag) is not None


@functools.lru_cache(1 << 12)  # called for each word, but a file has few different tags
def split(tag: str) -> tuple[str, str]:
    """Splits a tag of a known scheme into ("B" or "I", type); returns ("O", "") for any other tag."""
    match = _TAG.match(tag)
    return (_PREFIXES[match[1]], match[2] or "") if match else (OUTSIDE, "")


def join(prefix: str, type: str) -> str:
    """Returns the tag for a prefix and a type, such as B-PER; only the prefix if the type is empty."""
    return f"{prefix}-{type}" if type else prefix


def to_bio2(tags: Sequence[str]) -> list[str]:
    """Converts the tags of a sentence from any scheme to BIO2, with conlleval's rules."""
    out, open_type = [], None
    for tag in tags:
        prefix, type = split(tag)
        if prefix == "I" and type != open_type:
            prefix = "B"
        out.append(OUTSIDE if prefix == OUTSIDE else join(prefix, type))
        open_type = None if prefix == OUTSIDE or tag[0] in _LAST else type
    return out


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the entities of a sentence, in order."""
    out: list[Span] = []
    for place, tag in enumerate(to_bio2(tags)):
        prefix, type = split(tag)
        if prefix == "B":
            out.append(Span(type, place, place + 1))
        elif prefix == "I":
            out[-1] = out[-1]._replace(end=place + 1)
    return out


def count(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, Counts]:
    """Returns the counts of entities by type, sorted (Tjong Kim Sang and De Meulder 2003).

    A predicted entity is correct if its type and both ends match a gold entity. Both arguments are the tags
    of each sentence.
    """
    totals: tuple[Counter[str], Counter[str], Counter[str]] = (Counter(), Counter(), Counter())
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        truth, guess = set(spans(gold_tags)), set(spans(predicted_tags))
        for counter, entities in zip(totals, (truth & guess, guess, truth), strict=True):
            counter.update(span.type for span in entities)
    return {type: Counts(*(counter[type] for counter in totals)) for type in sorted(totals[1] | totals[2])}


def total(counts: Mapping[str, Counts]) -> Counts:
    """Returns the sum of the counts over all types; its scores are micro averages."""
    return Counts(*map(sum, zip(Counts(0, 0, 0), *counts.values(), strict=True)))


def tag_set(tags: Iterable[str]) -> tuple[str, ...]:
    """Returns the labels of a model: O, then B and I of every type, sorted by type.

    Every type has an I, even if all its entities have one word, because other files may have longer ones.
    """
    types = sorted({split(tag)[1] for tag in tags if tag != OUTSIDE})
    return (OUTSIDE, *(join(prefix, type) for type in types for prefix in "BI"))
