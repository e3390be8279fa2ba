"""Implements WordPiece as in google-research/bert's FullTokenizer, using the Rust library `tokenizers`."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from bert_jax.errors import UserError
from bert_jax.tokenization import normalization
from bert_jax.tokenization.interface import SPECIAL_TOKENS, Tokenizer, parallelism

CONTINUATION = "##"
MAX_WORD_CHARACTERS = 200  # longer words are [UNK]; in transformers the limit is 100

# Characters that the Rust library splits off as punctuation, because its Unicode tables are older, and Python
# does not. Their replacement does not occur in cleaned text and counts as a letter in the library.
_NO_LONGER_PUNCTUATION = {0x166D: "\ufffd", 0x111C9: "\ufffd"}


class WordPieceTokenizer(Tokenizer):
    """A tokenizer with a vocab.txt, which has one token per line; "##" marks a token that continues a word.

    The id of a token is the number of its line, from 0. The tokens equal those of google-research/bert
    (tokenization.FullTokenizer) on any Unicode text, by the Unicode tables of the running Python, with two
    exceptions. Lone surrogates, which do not occur in UTF-8 text, are dropped. U+166D and U+111C9 are
    punctuation in the older Unicode of the Rust library, but are now a symbol and a mark: words that contain
    them are [UNK], even if the vocabulary contains the words.

    Raises:
        UserError: the file is missing, empty or not UTF-8, has an empty or repeated line, or lacks a special
            token.
    """

    kind = "wordpiece"
    continuation = CONTINUATION

    @functools.cached_property
    def _normalize(self) -> Callable[[str], str]:
        return normalization.normalizer(self.lower_case, self.strip_accents)

    def _parse(self, data: bytes) -> None:
        self.tokens = tokens = parse_vocabulary(data, self.path)
        ids = {token: i for i, token in enumerate(tokens)}
        for name in SPECIAL_TOKENS.values():
            if name not in ids:
                raise UserError(
                    f"the vocabulary {self.path} has no {name}; expected "
                    f"{' '.join(SPECIAL_TOKENS.values())}, one a line: put it in place of an [unusedN]"
                )
        self.is_continuation = np.array([t.startswith(CONTINUATION) and t != CONTINUATION for t in tokens])
        self.special_ids = {role: ids[token] for role, token in SPECIAL_TOKENS.items()}
        # No special token is registered with the Rust library, so none is recognized in raw text.
        self._rust = tokenizers.Tokenizer(
            models.WordPiece(
                vocab=ids,
                unk_token="[UNK]",
                continuing_subword_prefix=CONTINUATION,
                max_input_chars_per_word=MAX_WORD_CHARACTERS,
            )
        )
        self._rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def _normalized(self, texts: Sequence[str]) -> list[str]:
        return [_replace_old_punctuation(self._normalize(text)) for text in texts]

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        parallelism()
        encodings = self._rust.encode_batch_fast(self._normalized(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and the spans of the tokens of each text; see `Tokenizer`."""
        parallelism()
        encodings = self._rust.encode_batch(self._normalized(texts), add_special_tokens=False)
        found = []
        for text, encoding in zip(texts, encodings, strict=True):
            begins, ends = normalization.original_spans(text, self._normalize)
            places = np.array(encoding.offsets, np.int32).reshape(-1, 2)
            offsets = np.stack([begins[places[:, 0]], ends[places[:, 1] - 1]], axis=1)
            found.append((np.array(encoding.ids, np.int32), offsets))
        return found

    def _join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens).replace(" " + CONTINUATION, "")


def _replace_old_punctuation(text: str) -> str:
    if text.isascii() or ("\u166d" not in text and "\U000111c9" not in text):
        return text
    return text.translate(_NO_LONGER_PUNCTUATION)


def parse_vocabulary(data: bytes, path: str) -> list[str]:
    r"""Returns the tokens of a vocab.txt, in the order of their ids.

    Only "\n" and "\r\n" end a line, since U+2028 and similar characters may be tokens.

    Raises:
        UserError: the file is not UTF-8, or has an empty or repeated line.
    """
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"the vocabulary {path} is not UTF-8 (line {line}); expected one token a line, or, for "
            "a SentencePiece model, a name that ends in .model"
        ) from None
    tokens = [line.removesuffix("\r") for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    first_line: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(
                f"line {number} of the vocabulary {path} is empty; expected a token on each line, "
                "whose number is its id: put [unusedN] there"
            )
        if token in first_line:
            raise UserError(
                f"lines {first_line[token]} and {number} of the vocabulary {path} are both "
                f"{token!r}; put [unusedN] in place of one of them"
            )
        first_line[token] = number
    return tokens
