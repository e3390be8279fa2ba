"""Implements WordPiece on the Rust library `tokenizers`, with the ids of transformers."""

import functools
import unicodedata
from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bert_jax.tokenization import normalization
from bert_jax.tokenization.interface import SPECIAL_TOKENS, Tokenizer, find_special_tokens

CONTINUATION = "##"
MAX_WORD_CHARACTERS = 100  # longer words are [UNK], as in transformers


class WordPieceTokenizer(Tokenizer):
    """A tokenizer with a vocab.txt, which has one token per line; "##" marks a token that continues a word.

    The id of a token is its line number, counted from 0. For any text, the tokens are the same as with
    BertTokenizer of transformers. Lone surrogates are dropped.
    """

    kind = "wordpiece"
    continuation = CONTINUATION
    max_word_characters = MAX_WORD_CHARACTERS

    def _parse(self, data: bytes) -> None:
        self.tokens = tokens = parse_vocabulary(data)
        ids = {token: i for i, token in enumerate(tokens)}
        find_special_tokens(ids, {role: (token,) for role, token in SPECIAL_TOKENS.items()})
        self.is_continuation = np.array([t.startswith(CONTINUATION) and t != CONTINUATION for t in tokens])
        self.special_ids = {role: ids[token] for role, token in SPECIAL_TOKENS.items()}

    @functools.cached_property
    def _rust(self) -> tokenizers.Tokenizer:
        # No special token is registered, so none is recognized in raw text.
        rust = tokenizers.Tokenizer(
            models.WordPiece(
                vocab={token: i for i, token in enumerate(self.tokens)},
                unk_token="[UNK]",
                continuing_subword_prefix=CONTINUATION,
                max_input_chars_per_word=self.max_word_characters,
            )
        )
        rust.normalizer = normalizers.BertNormalizer(
            strip_accents=self.strip_accents, lowercase=self.lower_case
        )
        rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return rust

    def normalize(self, text: str) -> str:
        """Returns a cleaned text, which is also lower-cased and stripped of accents if configured."""
        return self._rust.normalizer.normalize_str(normalization.without_surrogates(text))

    def words(self, text: str) -> list[str]:
        """Returns the normalized words of a text, which are split into tokens."""
        return [word for word, _ in self._rust.pre_tokenizer.pre_tokenize_str(self.normalize(text))]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and the spans of the tokens of each text; see `Tokenizer`."""
        found = super().encode_with_offsets(texts)
        for text, (_, offsets) in zip(texts, found, strict=True):
            if self.strip_accents and not text.isascii():  # the library's spans have no marks at their ends
                for span in offsets:
                    while span[1] < len(text) and unicodedata.category(text[span[1]])[0] == "M":
                        span[1] += 1
        return found

    def _join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens).replace(" " + CONTINUATION, "")


def parse_vocabulary(data: bytes) -> list[str]:
    r"""Returns the tokens of a vocab.txt, in the order of their ids. Raises ValueError if it is none.

    Only "\n" and "\r\n" end a line, since U+2028 and similar characters may be tokens.
    """
    tokens = [line.removesuffix("\r") for line in data.decode("utf-8-sig").split("\n")]
    while tokens and not tokens[-1]:
        tokens.pop()
    known = {""}
    for number, token in enumerate(tokens, 1):
        if token in known:
            raise ValueError(f"line {number} is empty, or repeats {token!r}")
        known.add(token)
    return tokens
