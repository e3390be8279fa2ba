"""Texts of one kind of characters, and how the time of a function grows with their length."""

import collections
import functools
import random
import time
import unicodedata
from collections.abc import Callable, Iterable

_QUICK = 0.01  # seconds, below which times say little
_GROWTH = 9  # of the time for four times the length: 4 if it is linear, and 16 if it is quadratic

# Repeated as they are: sequences that libraries reorder, compose, expand, pair or split.
UNITS = (
    *("a", "zx ", "x" * 150 + " ", "x" * 250 + " ", "e\u0301", "\u0301\u0323", "\u0323\u0301"),
    *("\u0f73\u0f75", "\u302e\U00016ff0", "\uff9e\u0323", "\u0345\u0301", "i\u0307", "\u03a3"),
    *("\u03a3\u0301", "\u0130", "\ufb01", "\ufdfa", "\u1100\u1161", "\uac01\u11a8", "\u094d\u200d"),
    *("\U0001f468\u200d\U0001f469\u200d", "\U0001f1e9", " ", "\t", "\n", "\r\n", "\u3000", "\u2028"),
    *("a\u3000", ".", "!", "...", "'", "''", "``", '"', "\u00ab ", "9,", "9, ", "1.", "A. ", "Mr. "),
    *('"a" ', "[", "[]", "((", "))", "{{", "{{a}}", "[[a|", "<", "<a>", "</", "<!--", "<ref", "&"),
    *("&amp;", "&#1", "{|", "=", "~", "_", "##", "[MASK]", "[CLS]", "<mask>", "\u2581", "http://a"),
    *("\x00", "\ufffd", "\u200b", "\u00c3\u0192\u00c2", "\u00e2\u20ac\u2122"),
)  # fmt: skip
SURROGATES = ("\ud83d", "\ude00")


@functools.cache
def alphabets() -> dict[str, str]:
    """Returns a hundred characters of each category."""
    found = collections.defaultdict(list)
    for character in map(chr, range(0x20000)):
        found[unicodedata.category(character)].append(character)
    del found["Cs"]
    rng = random.Random(0)
    return {name: "".join(rng.sample(some, min(100, len(some)))) for name, some in sorted(found.items())}


def texts(size: int) -> dict[str, str]:
    """Returns texts of a number of characters: each of one category, or one repeated unit."""
    rng = random.Random(1)
    drawn = {name: "".join(rng.choices(some, k=size)) for name, some in alphabets().items()}
    return drawn | {ascii(unit): repeated(unit, size) for unit in UNITS}


def repeated(unit: str, size: int) -> str:
    """Returns a text of a number of characters that repeats a unit."""
    return (unit * (size // len(unit) + 1))[:size]


def superlinear(function: Callable[[str], object], texts: Iterable[str]) -> list[str]:
    """Returns the beginnings of the texts for which the time of a function grows faster than their length.

    The CPU time of this process counts, and the best of some runs, so that other processes do not matter.
    """
    return [text[:20] for text in texts if not _is_linear(function, text)]


def _is_linear(function: Callable[[str], object], text: str) -> bool:
    short, long = [], []
    for _ in range(4):
        long.append(_seconds(function, text))
        short.append(_seconds(function, text[: len(text) // 4]) if long[-1] > _QUICK else _QUICK)
        if min(long) <= max(_QUICK, _GROWTH * min(short)):
            return True
    return False


def _seconds(function: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    function(text)
    return time.process_time() - began
