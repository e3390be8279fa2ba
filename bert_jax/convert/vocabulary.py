"""Replaces the vocabulary of a trained model.

Tokens of both vocabularies keep their embeddings; a new token gets the mean of its subwords' embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import models

from bert_jax.convert.model import Model
from bert_jax.convert.surgery import change_rows
from bert_jax.errors import UserError
from bert_jax.tokenization import SPECIAL_TOKENS, Tokenizer
from bert_jax.tokenization.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, WordPieceTokenizer

_UNUSED = re.compile(r"\[unused\d+\]")

# A word start placed before a text that continues a word. Cleaning drops private-use characters, so no token
# contains it.
_ANCHOR = "\ue000"

# A token's text without its vocabulary's marker, such as "##", and whether it continues a word.
_Key = tuple[str, bool]


def replace_vocabulary(model: Model, tokenizer: Tokenizer) -> tuple[Model, str]:
    """Returns the model with another vocabulary, and a line with the numbers of tokens.

    A token of both vocabularies keeps its row of the word embeddings and its masked LM bias, even if its id
    changes; special tokens are matched by role. A new token gets the mean of its subwords under the old
    tokenizer, which splits a continuation of a word as such (Gee et al. 2022, "Fast Vocabulary Transfer").
    [UNK] is ignored; a token without other subwords, and a placeholder such as [unused7], gets the mean of
    all tokens. The two vocabularies may be of different kinds. Rows beyond the old vocabulary (padding) are
    dropped.
    """
    old = model.require_tokenizer()
    rows: dict[_Key, int] = {}
    for i, key in enumerate(_token_keys(old)):
        rows.setdefault(key, i)
    keys = _token_keys(tokenizer)
    new = [key for key in dict.fromkeys(keys) if key not in rows]
    sources = {key: [row] for key, row in rows.items()} | dict(zip(new, _subwords(old, new), strict=True))
    everything = range(old.vocab_size)
    groups = [sources[key] or everything for key in keys]

    common = sum(key in rows for key in keys)
    unknown, dropped = sum(not sources[key] for key in keys), old.vocab_size - len(rows.keys() & set(keys))
    report = (
        f"vocabulary: {old.vocab_size:,} -> {len(keys):,} tokens; {common:,} kept, "
        f"{len(keys) - common:,} new ({unknown:,} of them without known subwords), {dropped:,} dropped"
    )
    size = tokenizer.vocab_size
    return change_rows(model, size, lambda rows: _means(rows, groups), tokenizer=tokenizer), report


def _means(table: np.ndarray, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Returns an array whose row i is the mean of the rows `groups[i]`; a single row is copied exactly."""
    result = np.empty((len(groups), *table.shape[1:]), table.dtype)
    mean_of_all = None
    for i, group in enumerate(groups):
        if len(group) == 1:
            result[i] = table[group[0]]
        elif isinstance(group, range):
            if mean_of_all is None:
                mean_of_all = table[: len(group)].mean(axis=0, dtype=np.float64)
            result[i] = mean_of_all
        else:
            result[i] = table[group].mean(axis=0, dtype=np.float64)
    return result


def _token_keys(tokenizer: Tokenizer) -> list[_Key]:
    keys = [
        (_text(tokenizer, i), continues) for i, continues in enumerate(tokenizer.is_continuation.tolist())
    ]
    for role, i in tokenizer.special_ids.items():
        keys[i] = (SPECIAL_TOKENS[role], False)
    return keys


def _text(tokenizer: Tokenizer, token_id: int) -> str:
    token = tokenizer.tokens[token_id]
    if tokenizer.kind == "bpe":
        text = tokenizer.spelling(token_id)
        # A token that is a part of a character gets a text that no other vocabulary has.
        return _ANCHOR + token if "\ufffd" in text else text.removeprefix(" ")
    mark = tokenizer.continuation if tokenizer.is_continuation[token_id] else tokenizer.word_start
    return token.removeprefix(mark)


def _subwords(tokenizer: Tokenizer, keys: Sequence[_Key]) -> list[list[int]]:
    starts = tokenizer.encode_batch([tokenizer.after_space(text) for text, _ in keys])
    split = _continuation_splitter(tokenizer)
    subwords = [
        split(text, ids) if continues else ids for (text, continues), ids in zip(keys, starts, strict=True)
    ]
    return [
        []
        if _UNUSED.fullmatch(text) or text.startswith(_ANCHOR)
        else [i for i in ids if i != tokenizer.unk_id]
        for (text, _), ids in zip(keys, subwords, strict=True)
    ]


def _continuation_splitter(tokenizer: Tokenizer) -> Callable[[str, list[int]], list[int]]:
    if tokenizer.kind == "bpe":
        return lambda text, word: tokenizer.encode_batch([text])[0]
    ids = {token: i for i, token in enumerate(tokenizer.tokens)}
    if not isinstance(tokenizer, WordPieceTokenizer):

        def from_word(text: str, word: list[int]) -> list[int]:
            # SentencePiece splits whole words only, so the marker of the word's start is removed afterwards.
            first = tokenizer.tokens[word[0]].removeprefix(tokenizer.word_start) if word else ""
            return [ids.get(first, word[0]), *word[1:]] if first else word[1:]

        return from_word

    anchored = models.WordPiece(
        vocab=ids | {_ANCHOR: len(ids)},
        unk_token="[UNK]",
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=MAX_WORD_CHARACTERS + 1,
    )

    def after_anchor(text: str, word: list[int]) -> list[int]:
        found = [token.id for token in anchored.tokenize(_ANCHOR + tokenizer.normalize(text).strip())]
        return [i for i in found if i != len(ids)]

    return after_anchor


def add_tokens(tokenizer: Tokenizer, tokens: Sequence[str]) -> list[str]:
    """Returns all tokens, by id, of a WordPiece vocabulary with `tokens` added.

    They replace [unusedN] tokens in order and are then appended; tokens that the vocabulary already has are
    skipped. "##" before a token marks the continuation of a word.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(f"--add_tokens needs WordPiece, and {tokenizer.path} is {tokenizer.kind}")
    known = set(tokenizer.tokens)
    new = [token for token in dict.fromkeys(tokens) if token not in known]
    for token in new:
        text = token.removeprefix(CONTINUATION)
        if tokenizer.words(text) != [text] or len(text) > MAX_WORD_CHARACTERS:
            raise UserError(
                f"--add_tokens: {token!r} would never occur; expected one word without spaces or "
                f"punctuation{', in lower case' if tokenizer.lower_case else ''}"
            )
    result = list(tokenizer.tokens)
    places = [i for i, token in enumerate(result) if _UNUSED.fullmatch(token)]
    for i, token in zip(places, new, strict=False):
        result[i] = token
    return result + new[len(places) :]
