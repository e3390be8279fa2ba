"""Random strings of all of Unicode but surrogates, in which whitespace and rare letters are frequent."""

import random
import sys
import unicodedata

from support.wordpiece_oracle import CHINESE


def alphabets() -> list[list[str]]:
    """Returns lists of characters; a string draws each of its words from one or two of them."""
    by_category = {}
    for code_point in range(sys.maxunicode + 1):
        char = chr(code_point)
        if unicodedata.category(char) != "Cs":
            by_category.setdefault(unicodedata.category(char), []).append(char)
    chinese = [chr(c) for first, last in CHINESE for c in (first, first + 1, last - 1, last)]
    chinese += [chr(c) for first, last in CHINESE for c in (first - 1, last + 1)]
    return [
        [chr(c) for c in range(0x20, 0x7F)],
        [chr(c) for c in range(0xA1, 0x250)],
        [chr(c) for c in range(0x370, 0x530)],
        list("abcdefghijklmnopqrstuvwxyz"),
        list("ΣσςİıßẞK\u0130\u0301\u0327\u200b\u200d\ufeff\u00ad\x1c\x1f\x85\u2028\u2029\u3000\0\ufffd[]'"),
        chinese,
        *by_category.values(),
    ]


def text(rng: random.Random, alphabets: list[list[str]]) -> str:
    """Returns a random string of one to four words."""
    words = []
    for _ in range(rng.randint(1, 4)):
        characters = rng.choice(alphabets) + rng.choice(alphabets[:5])[:40]
        words.append("".join(rng.choices(characters, k=rng.randint(1, 8))))
    return rng.choice([" ", "", "\t", "\n"]).join(words)
