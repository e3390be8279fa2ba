"""Implements byte-level BPE as RoBERTa and ModernBERT use it, on the Rust library `tokenizers`.

A text is split into words by GPT-2's pattern, where a word includes the space before it; the UTF-8 bytes of a
word are joined by merges (Radford et al. 2019, section 2.2; Liu et al. 2019, section 4.4). Since every byte
has a token, no text is unknown, and decoding restores it exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from bert_jax.errors import UserError
from bert_jax.io import files, json_files
from bert_jax.tokenization import byte_bpe_files, normalization
from bert_jax.tokenization.interface import Tokenizer, parallelism

WORD_START = "\u0120"  # stands for a space

_BYTES = {character: byte for byte, character in byte_bpe_files.characters_of_bytes().items()}
_SCHEMA = {
    "model": dict,
    "added_tokens?": ([{"content": str, "id": range(0, 1 << 31)}], None),
    "pre_tokenizer?": byte_bpe_files.PRE_TOKENIZER,
    "post_processor?": byte_bpe_files.POST_PROCESSOR,
}
_MODEL = {"type?": (str, None), "vocab": {str: range(0, 1 << 31)}, "merges": list, "unk_token?": (str, None)}


class ByteBpeTokenizer(Tokenizer):
    """A tokenizer with a tokenizer.json of byte-level BPE.

    The tokens equal those of transformers, except for special tokens that are spelled out in a text: see
    `encode_batch`. Whitespace is part of the tokens, so that a blank text has tokens, and a word has other
    tokens after a space than at the beginning of a text. A lone surrogate, which does not occur in UTF-8
    text, is encoded as U+FFFD. A byte for which the vocabulary has no token is the unknown token.

    The offsets do not include spaces: a token that is only a space has an empty span where the next one
    begins. The tokens of a character that is split into several all have the span of that character.

    Args:
        path: see `Tokenizer`.
        lower_case: False or None, since the text is not changed.
        strip_accents: False or None.
        template: see `Tokenizer`; the default is that of the file.

    Raises:
        UserError: the file is missing, is not byte-level BPE, or lacks a special token; or the text shall be
            lower-cased or stripped of accents.
    """

    kind = "bpe"
    states_template = True
    word_start = WORD_START
    keeps_case = "is byte-level BPE, which keeps the case and the accents of a text"

    def _parse(self, data: bytes) -> None:
        content = json_files.parse(data, self.path)
        if "model" not in content:
            raise UserError(
                f"{self.path} is no tokenizer.json; give that file, or the directory with "
                f"{byte_bpe_files.VOCABULARY} and {byte_bpe_files.MERGES}"
            )
        json_files.check(content, _SCHEMA, self.path)
        kind = content["model"].get("type")
        if kind != "BPE" or not byte_bpe_files.byte_levels(content):
            folder = f": give its folder, {files.parent(self.path)}" if kind == "WordPiece" else ""
            raise UserError(
                f"{self.path} holds a tokenizer of the type {kind}, not byte-level BPE; expected the "
                f"vocab.txt or the .model of another kind of vocabulary{folder}"
            )
        json_files.check(content["model"], _MODEL, self.path, "model")
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        ids: dict[str, int] = content["model"]["vocab"] | added
        self.tokens = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in self.tokens] != list(range(len(ids))):
            raise UserError(f"{self.path}: its ids are not 0 to {len(ids) - 1}, one a token")
        self.special_tokens = byte_bpe_files.special_tokens(ids, self.path)
        self.special_ids = {role: ids[token] for role, token in self.special_tokens.items()}
        self.default_template = byte_bpe_files.template_of(content, self.special_tokens, self.path)
        special = {role: (token, ids[token]) for role, token in self.special_tokens.items()}
        self._content = byte_bpe_files.with_special_tokens(content, special, self.default_template)
        (mask,) = (x for x in self._content["added_tokens"] if x["content"] == self.special_tokens["mask"])
        self.mask_strips = bool(mask.get("lstrip")), bool(mask.get("rstrip"))
        self._rust = self._load()
        self._bytes = {
            token: token.encode() if token in added or token in special else _bytes_of(token) for token in ids
        }
        starts = set(added) | set(self.special_tokens.values())
        self.is_continuation = np.array(
            [token not in starts and not token.startswith(WORD_START) for token in self.tokens]
        )

    def _load(self) -> tokenizers.Tokenizer:
        content = dict(self._content)
        model = content["model"]
        if not model.get("unk_token") and not _BYTES.keys() <= model["vocab"].keys():
            content["model"] = model | {"unk_token": self.special_tokens["unk"]}
        try:
            rust = tokenizers.Tokenizer.from_str(json.dumps(content))
        except BaseException as error:  # the library has no class for them, and Rust panics are no Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            raise UserError(f"{self.path}: it is damaged, or of another version ({error})") from None
        rust.no_padding()
        rust.no_truncation()
        rust.encode_special_tokens = True  # none is recognized in a text
        rust.post_processor = processors.ByteLevel(add_prefix_space=self.prefix_space, trim_offsets=True)
        return rust

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of tokenizer.json, with the template of this tokenizer."""
        special = {role: (token, self.special_ids[role]) for role, token in self.special_tokens.items()}
        return byte_bpe_files.with_special_tokens(self._content, special, self.template)

    @property
    def prefix_space(self) -> bool:
        """Whether a space is put before a text that begins with none: transformers' add_prefix_space."""
        return byte_bpe_files.prefix_space(self._content)

    @property
    def is_plain(self) -> bool:
        """Whether vocab.json and merges.txt suffice but for `prefix_space`.

        The text is not normalized then, and is split as for GPT-2.
        """
        return byte_bpe_files.is_plain(self._content)

    def after_space(self, text: str) -> str:
        """Returns a text with a space before it, unless it begins with whitespace; see `Tokenizer`."""
        return text if text[:1] in self.whitespace else f" {text}"

    def spelling(self, token_id: int) -> str:
        """Returns the text of a token, which includes the space before a word."""
        return self._join([self.tokens[token_id]])

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        parallelism()
        encodings = self._rust.encode_batch_fast(_utf8(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the ids and the spans of the tokens of each text; see `Tokenizer`."""
        parallelism()
        found = [
            (np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2))
            for encoding in self._rust.encode_batch(_utf8(texts), add_special_tokens=False)
        ]
        if self.prefix_space:  # The library takes the space of a text itself for one that was put before it.
            for text, (_, offsets) in zip(texts, found, strict=True):
                if text.startswith(" "):
                    offsets[:1] = np.maximum(offsets[:1], 1)
        return found

    def _join(self, tokens: Sequence[str]) -> str:
        return b"".join(self._bytes[token] for token in tokens).decode("utf-8", "replace")


def _bytes_of(token: str) -> bytes:
    """Returns the bytes of a token; characters that stand for no byte are encoded as UTF-8."""
    return b"".join(bytes([_BYTES[c]]) if c in _BYTES else c.encode() for c in token)


def _utf8(texts: Sequence[str]) -> list[str]:
    return [normalization.without_surrogates(text) for text in texts]
