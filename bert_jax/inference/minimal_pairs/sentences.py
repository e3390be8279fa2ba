"""Minimal pairs of our own: two sentences that differ in one word, of which one is grammatical.

The words are frequent in Wikipedia, so that a vocabulary of 8,192 tokens has nearly all of them. But for the
negative polarity items, a phenomenon has each pair of words in both roles equally often: whoever always
prefers the same word of a pair gets half of its pairs right.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Pair(NamedTuple):
    """A minimal pair.

    Attributes:
        phenomenon: what decides which sentence is grammatical.
        good: the grammatical sentence.
        bad: the other one.
    """

    phenomenon: str
    good: str
    bad: str


# (singular, plural)
_PEOPLE = (
    ("author", "authors"),
    ("player", "players"),
    ("student", "students"),
    ("writer", "writers"),
    ("officer", "officers"),
    ("actor", "actors"),
    ("artist", "artists"),
    ("leader", "leaders"),
)
_PREDICATES = (
    ("is", "are", "very famous"),
    ("was", "were", "born in the city"),
    ("has", "have", "a new house"),
    ("lives", "live", "near the river"),
    ("works", "work", "at the school"),
)
_WITH_COMPLEMENT = (
    (("author", "authors"), "of", ("book", "books")),
    (("player", "players"), "in", ("game", "games")),
    (("student", "students"), "at", ("school", "schools")),
    (("writer", "writers"), "of", ("song", "songs")),
    (("officer", "officers"), "on", ("ship", "ships")),
    (("actor", "actors"), "in", ("film", "films")),
    (("owner", "owners"), "of", ("house", "houses")),
    (("leader", "leaders"), "of", ("party", "parties")),
)
_RELATIVE_VERBS = ("saw", "met", "knew", "helped")
_THINGS = (
    ("book", "books"),
    ("song", "songs"),
    ("film", "films"),
    ("house", "houses"),
    ("town", "towns"),
    ("school", "schools"),
    ("ship", "ships"),
    ("road", "roads"),
)
_DETERMINERS = (("this", "these"), ("that", "those"), ("a", "many"))
_EXPERIENCES = ("seen the river", "won the game", "been in the church", "left the city")
_POSSESSIONS = ("money", "food", "children", "friends")
_MALE = ("man", "king", "lord", "father", "brother", "son", "husband")
_FEMALE = ("woman", "queen", "lady", "mother", "sister", "daughter", "wife")
_REFLEXIVE_VERBS = ("saw", "helped", "found", "killed", "taught")
_RELATIVES = (
    ("man", "men", "himself"),
    ("king", "kings", "himself"),
    ("brother", "brothers", "himself"),
    ("son", "sons", "himself"),
    ("woman", "women", "herself"),
    ("sister", "sisters", "herself"),
    ("daughter", "daughters", "herself"),
    ("mother", "mothers", "herself"),
)


def _agreement() -> Iterator[tuple[str, str]]:
    for nouns, (*verbs, rest) in itertools.product(_PEOPLE, _PREDICATES):
        for number in (0, 1):
            yield _contrast(f"The {nouns[number]} {{}} {rest}.", verbs, number)


def _agreement_prepositional_phrase() -> Iterator[tuple[str, str]]:
    for (nouns, preposition, others), (*verbs, rest) in itertools.product(_WITH_COMPLEMENT, _PREDICATES):
        for number in (0, 1):
            subject = f"The {nouns[number]} {preposition} the {others[1 - number]}"
            yield _contrast(f"{subject} {{}} {rest}.", verbs, number)


def _agreement_relative_clause() -> Iterator[tuple[str, str]]:
    verbs_between = itertools.cycle(_RELATIVE_VERBS)
    for place, nouns in enumerate(_PEOPLE):
        others = _PEOPLE[(place + 3) % len(_PEOPLE)]
        for *verbs, rest in _PREDICATES:
            between = next(verbs_between)
            for number in (0, 1):
                subject = f"The {nouns[number]} that the {others[1 - number]} {between}"
                yield _contrast(f"{subject} {{}} {rest}.", verbs, number)


def _determiner_noun() -> Iterator[tuple[str, str]]:
    frames = ("He saw {{}} {0}.", "They found {{}} {0} near the river.")
    for frame, nouns, determiners in itertools.product(frames, _THINGS, _DETERMINERS):
        for number in (0, 1):
            yield _contrast(frame.format(nouns[number]), determiners, number)


def _npi_ever() -> Iterator[tuple[str, str]]:
    for (noun, nouns), what in itertools.product(_PEOPLE[:5], _EXPERIENCES):
        yield _contrast(f"{{}} {noun} has ever {what}.", ("No", "The"), 0)
        yield _contrast(f"{{}} {nouns} have ever {what}.", ("Few", "Most"), 0)
        yield _contrast(f"The {nouns} have {{}} ever {what}.", ("not", "also"), 0)


def _npi_any() -> Iterator[tuple[str, str]]:
    for (noun, nouns), what in itertools.product(_PEOPLE[:5], _POSSESSIONS):
        yield _contrast(f"{{}} {noun} has any {what}.", ("No", "The"), 0)
        yield _contrast(f"The {noun} lived {{}} any {what}.", ("without", "with"), 0)
        yield _contrast(f"The {nouns} did {{}} have any {what}.", ("not", "also"), 0)


def _reflexive_gender() -> Iterator[tuple[str, str]]:
    for nouns, verb in itertools.product(zip(_MALE, _FEMALE, strict=True), _REFLEXIVE_VERBS):
        for gender in (0, 1):
            yield _contrast(f"The {nouns[gender]} {verb} {{}}.", ("himself", "herself"), gender)


def _reflexive_number() -> Iterator[tuple[str, str]]:
    for (*nouns, singular), verb in itertools.product(_RELATIVES, _REFLEXIVE_VERBS):
        for number in (0, 1):
            yield _contrast(f"The {nouns[number]} {verb} {{}}.", (singular, "themselves"), number)


def _contrast(frame: str, words: tuple[str, ...] | list[str], right: int) -> tuple[str, str]:
    """Returns the frame with the right one of two words, and with the other one."""
    return frame.format(words[right]), frame.format(words[1 - right])


_PHENOMENA: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "agreement": _agreement,
    "agreement_prepositional_phrase": _agreement_prepositional_phrase,
    "agreement_relative_clause": _agreement_relative_clause,
    "determiner_noun": _determiner_noun,
    "npi_ever": _npi_ever,
    "npi_any": _npi_any,
    "reflexive_gender": _reflexive_gender,
    "reflexive_number": _reflexive_number,
}


def generate() -> list[Pair]:
    """Returns the pairs of all phenomena, always the same and in the same order."""
    return [Pair(name, *pair) for name, made in _PHENOMENA.items() for pair in made()]
