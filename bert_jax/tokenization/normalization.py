"""What google-research/bert's BasicTokenizer does to text before splitting it, with no loop over characters.

Control characters are dropped, Chinese characters and punctuation outside ASCII are set apart by spaces,
and, as asked, letters are lower-cased and accents stripped. What is left for the Rust side is to split at
whitespace and at ASCII punctuation. Doing this here rather than in the `BertNormalizer` of `tokenizers`
gives the reference's tokens exactly: the Rust tables are of an older Unicode (new punctuation and emoji
would be letters, or vanish), drop private-use characters, miss the final sigma and have a wrong bound in
the Chinese range. It is also the cheaper of the two: ASCII text, most of an English corpus, needs no
substitution at all.
"""

import functools
import re
import unicodedata
from collections.abc import Callable, Iterable

import numpy as np

# google-research/bert's _is_chinese_char: unified and compatibility ideographs, without kana and hangul.
CHINESE_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)

# Planes with marks, punctuation or format characters; the others hold ideographs, private use, or nothing.
_PLANES = (range(0x20000), range(0xE0000, 0xE1000))


def character_class(code_points: Iterable[int]) -> str:
    """A regular expression class ``[...]`` that matches exactly the given code points."""
    ranges: list[list[int]] = []
    for code_point in sorted(code_points):
        if ranges and code_point == ranges[-1][1] + 1:
            ranges[-1][1] = code_point
        else:
            ranges.append([code_point, code_point])
    return "[" + "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges) + "]"


class _Substitution:
    """Replaces every run of, or each of, a set of characters by a template of `re.sub`.

    The class of the basic plane is a table for `re`, but every range beyond it is a comparison for each
    character of the text: so those have a pattern of their own, used where a text has such characters at all.
    """

    def __init__(self, code_points: set[int], template: str, repeat: str):
        self._basic = re.compile(character_class(c for c in code_points if c < 0x10000) + repeat)
        self._beyond = re.compile(character_class(c for c in code_points if c >= 0x10000) + repeat)
        self._template = template

    def __call__(self, text: str) -> str:
        text = self._basic.sub(self._template, text)
        if len(text.encode("utf-16-le", "surrogatepass")) > 2 * len(text):
            text = self._beyond.sub(self._template, text)
        return text


@functools.cache
def _substitutions() -> tuple[_Substitution, _Substitution, _Substitution]:
    """What drops unwanted characters, what drops marks, and what sets one-character tokens apart."""
    dropped, marks = {0xFFFD, *range(0xD800, 0xE000)}, set()
    alone = {c for first, last in CHINESE_RANGES for c in range(first, last + 1)}
    for plane in _PLANES:
        for code_point in plane:
            category = unicodedata.category(chr(code_point))
            if category in ("Cc", "Cf"):
                dropped.add(code_point)
            elif category == "Mn":
                marks.add(code_point)
            elif category[0] == "P" and code_point > 0x7F:
                alone.add(code_point)
    dropped -= {ord(c) for c in "\t\n\r"}
    return (
        _Substitution(dropped, "", "+"),
        _Substitution(marks, "", "+"),
        _Substitution(alone, r" \g<0> ", ""),
    )


def clean(text: str) -> str:
    """Drops NUL, U+FFFD, lone surrogates, control and format characters; keeps tab, newline, return."""
    if text.isprintable() and "\ufffd" not in text:
        return text
    return _substitutions()[0](text)


def fold(text: str, lower_case: bool, strip_accents: bool) -> str:
    """Lower-cases and strips accents (canonical decomposition, nonspacing marks removed) of cleaned text."""
    if lower_case:
        text = text.lower()
    if strip_accents and not text.isascii():
        text = _substitutions()[1](unicodedata.normalize("NFD", text))
    return text


def normalizer(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    """The function from raw text to text whose words only whitespace and ASCII punctuation separate."""
    set_apart = _substitutions()[2]

    def normalize(text: str) -> str:
        text = fold(clean(text), lower_case, strip_accents)
        return text if text.isascii() else set_apart(text)

    return normalize


def original_spans(text: str, normalize: Callable[[str], str]) -> tuple[np.ndarray, np.ndarray]:
    """Where each character of `normalize(text)` comes from.

    What normalization does to a character depends on no other, but for the form of a final sigma and the
    order of the marks of one letter: so the lengths of single characters add up to those of the text.

    Returns:
      int32 [n] begin and int32 [n] end in `text` of each of the n characters of the normalized text. A letter
      ends with the marks that follow it, though they are dropped.
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


def is_alone(character: str) -> bool:
    """Whether a character is a word of its own wherever it stands: punctuation and Chinese characters."""
    if character.isascii():
        return character.isprintable() and not character.isalnum()
    return _substitutions()[2](character) != character
