"""Normalizes and splits text for a SentencePiece model like google-research/albert.

The slow tokenizer of transformers is the same; the one in Rust has no rule for digits before a comma.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np

from bert_jax.tokenization import normalization

WORD_START = "\u2581"

_COLLAPSED = re.compile(r"\s+|``|''|.", re.DOTALL)


def normalizer(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    """Returns a function that normalizes raw text.

    Whitespace becomes single spaces, and pairs of backquotes and of apostrophes become quotation marks. On
    request, accents are stripped by compatibility decomposition and removal of all combining characters, and
    letters are lower-cased.
    """
    fold = _folding(lower_case, strip_accents)
    return lambda text: fold(_plain(text))


def original_spans(text: str, lower_case: bool, strip_accents: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the span in the original text of each character of the normalized text.

    The result is that of `normalization.original_spans`.
    """
    plain = _plain(text)
    begins, ends = normalization.original_spans(plain, _folding(lower_case, strip_accents))
    if plain == text:
        return begins, ends
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    places = [match.span() for match in _COLLAPSED.finditer(text, start, end)]
    edges = np.array(places, np.int32).reshape(-1, 2)
    return edges[begins, 0], edges[ends - 1, 1]


def split_digit_commas(pieces: Sequence[str], encode: Callable[[str], list[str]]) -> list[list[str]]:
    """Returns the pieces, in which `9,` is split into `9` and a comma; the parts of each piece are a list.

    Args:
        pieces: the pieces of a text.
        encode: returns the pieces of a text.
    """
    return [_split(piece, encode) if ends_in_digit_comma(piece) else [piece] for piece in pieces]


def ends_in_digit_comma(piece: str) -> bool:
    """Returns whether a piece ends in a digit and a comma."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def _split(piece: str, encode: Callable[[str], list[str]]) -> list[str]:
    parts = encode(piece[:-1].replace(WORD_START, ""))
    if parts and piece[0] != WORD_START and parts[0][0] == WORD_START:
        parts = [*filter(None, [parts[0][1:]]), *parts[1:]]
    return [*parts, ","]


def _plain(text: str) -> str:
    text = " ".join(normalization.without_surrogates(text).split())
    return text.replace("``", '"').replace("''", '"')


def _folding(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    def fold(text: str) -> str:
        if strip_accents and not text.isascii():
            decomposed = normalization.normalize("NFKD", text)
            text = "".join(character for character in decomposed if not unicodedata.combining(character))
        return text.lower() if lower_case else text

    return fold
