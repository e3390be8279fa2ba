"""Splits text exactly as google-research/bert does (tokenization.FullTokenizer), for its records.

Chinese characters and punctuation outside ASCII are surrounded by spaces, so that the Rust library only has
to split at whitespace and at ASCII punctuation.
"""

import functools
import unicodedata
from collections.abc import Callable, Sequence

import tokenizers
from tokenizers import normalizers

from bert_jax.tokenization import normalization
from bert_jax.tokenization.interface import parallelism
from bert_jax.tokenization.wordpiece import WordPieceTokenizer

MAX_WORD_CHARACTERS = 200  # longer words are [UNK]

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


@functools.cache
def _surrounded_by_spaces() -> dict[int, str]:
    """Returns the table of `str.translate` that puts spaces around characters."""
    alone = {c for first, last in CHINESE_RANGES for c in range(first, last + 1)}
    for code_point in (c for plane in normalization.PLANES for c in plane if c > 0x7F):
        if unicodedata.category(chr(code_point))[0] == "P":
            alone.add(code_point)
    return {code_point: f" {chr(code_point)} " for code_point in alone}


def normalizer(lower_case: bool, strip_accents: bool) -> Callable[[str], str]:
    """Returns a function that normalizes raw text.

    In its result, words are separated only by whitespace and ASCII punctuation.
    """
    surrounded_by_spaces = _surrounded_by_spaces()

    def normalize(text: str) -> str:
        text = normalization.fold(normalization.clean(text), lower_case, strip_accents)
        return text if text.isascii() else text.translate(surrounded_by_spaces)

    return normalize


def is_alone(character: str) -> bool:
    """Returns whether a character is always a separate word, such as punctuation and Chinese characters."""
    if character.isascii():
        return character.isprintable() and not character.isalnum()
    return ord(character) in _surrounded_by_spaces()


class GoogleWordPieceTokenizer(WordPieceTokenizer):
    """WordPiece that normalizes text with the Unicode tables of the running Python.

    U+166D and U+111C9 are punctuation in the older tables of the Rust library: words that contain them are
    [UNK].
    """

    max_word_characters = MAX_WORD_CHARACTERS

    @functools.cached_property
    def _rust(self) -> tokenizers.Tokenizer:
        rust = super()._rust
        rust.normalizer = normalizers.Sequence([])  # texts are normalized before
        return rust

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        normalize = normalizer(self.lower_case, self.strip_accents)
        # U+FFFD does not occur in cleaned text and is not punctuation.
        plain = [normalize(text).translate({0x166D: "\ufffd", 0x111C9: "\ufffd"}) for text in texts]
        parallelism()
        return [one.ids for one in self._rust.encode_batch_fast(plain, add_special_tokens=False)]
