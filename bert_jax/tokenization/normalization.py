"""Cleans and folds text like google-research/bert's BasicTokenizer, without a loop over characters.

SentencePiece models and google records use these rules. WordPiece uses the `BertNormalizer` of `tokenizers`,
which differs: its tables have an older Unicode version, it drops private-use characters, and it does not
handle the final sigma.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np

_SURROGATES = re.compile("[\ud800-\udfff]")

_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_LONG_RUN = 50  # combining characters in a row; real text has at most a dozen

# Planes with marks, punctuation or format characters; the others contain ideographs, private use, or nothing.
PLANES = (range(0x20000), range(0xE0000, 0xE1000))


def character_class(code_points: Iterable[int]) -> str:
    """Returns a regular expression class ``[...]`` that matches exactly the given code points."""
    ranges: list[list[int]] = []
    for code_point in sorted(code_points):
        if ranges and code_point == ranges[-1][1] + 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"


@functools.cache
def _removals() -> tuple[dict[int, None], dict[int, None]]:
    """Returns the tables of `str.translate` that drop unwanted characters, and marks."""
    dropped, marks = {0xFFFD, *range(0xD800, 0xE000)}, set()
    for code_point in itertools.chain.from_iterable(PLANES):
        category = unicodedata.category(chr(code_point))
        if category in ("Cc", "Cf"):
            dropped.add(code_point)
        elif category == "Mn":
            marks.add(code_point)
    dropped -= {ord(c) for c in "\t\n\r"}
    return dict.fromkeys(dropped), dict.fromkeys(marks)


def clean(text: str) -> str:
    """Drops NUL, U+FFFD, lone surrogates, control and format characters; keeps tab, newline and return."""
    if text.isprintable() and "\ufffd" not in text:
        return text
    return text.translate(_removals()[0])


def without_surrogates(text: str) -> str:
    """Returns a text with each lone surrogate, which UTF-8 cannot encode, replaced by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


@functools.cache
def _long_runs(form: _Form) -> tuple[frozenset[str], re.Pattern[str]]:
    """Returns the characters that decompose into combining characters only, and a pattern of long runs."""
    every = map(chr, itertools.chain.from_iterable(PLANES))
    marks = [c for c in every if all(map(unicodedata.combining, unicodedata.normalize(form, c)))]
    return frozenset(marks), re.compile(f"{character_class(map(ord, marks))}{{{_LONG_RUN},}}")


def normalize(form: _Form, text: str) -> str:
    """Returns `unicodedata.normalize(form, text)` in linear time: long runs of marks are sorted first."""
    decomposed: Any = form.replace("C", "D")
    marks, long_runs = _long_runs(decomposed)
    if not marks.isdisjoint(text[::_LONG_RUN]):  # true for any text with a long run
        decompose = functools.partial(unicodedata.normalize, decomposed)
        text = long_runs.sub(
            lambda run: "".join(sorted("".join(map(decompose, run[0])), key=unicodedata.combining)), text
        )
    return unicodedata.normalize(form, text)


def fold(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Lower-cases cleaned text and strips its accents, as requested.

    Accents are stripped by canonical decomposition and removal of nonspacing marks.
    """
    if lower_case:
        text = text.lower()
    if strip_accents and not text.isascii():
        text = normalize("NFD", text).translate(_removals()[1])
    return text


def original_spans(text: str, normalize: Callable[[str], str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the span in the original text of each character of `normalize(text)`.

    The normalization of a character does not depend on other characters, except for the form of a final sigma
    and the order of the marks of a letter. The lengths of the normalized single characters therefore add up
    to the length of the normalized text.

    Returns:
        int32 [n] begin and int32 [n] end in `text` of each of the n characters of the normalized text. The
            span of a letter includes the marks that follow it, even though they are dropped.
    """
    if text.isascii() and text.isprintable():
        begins = np.arange(len(text), dtype=np.int32)
        return begins, begins + 1
    known: dict[str, int] = {}
    for character in set(text):
        known[character] = len(normalize(character))
    lengths = np.fromiter((known[character] for character in text), np.int32, len(text))
    ends = np.arange(1, len(text) + 1, dtype=np.int32)
    for i in np.flatnonzero(lengths[::-1] == 0):
        place = len(text) - 1 - i
        if place and unicodedata.category(text[place])[0] == "M":
            ends[place - 1] = ends[place]
    return np.repeat(np.arange(len(text), dtype=np.int32), lengths), np.repeat(ends, lengths)
