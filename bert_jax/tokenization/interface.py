"""Defines the interface of all tokenizers and the code that they share."""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import multiprocessing
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bert_jax.errors import UserError, reading
from bert_jax.io import files
from bert_jax.io.wording import alternatives, first_line
from bert_jax.tokenization import normalization, templates

# The characters with the Unicode property White_Space; str.isspace() is true for four more.
_WHITESPACE = (*"\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000", *map(chr, range(0x2000, 0x200B)))

# The spelling of each special token in a text, by role.
SPECIAL_TOKENS = {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}


class Tokenizer(abc.ABC):
    """Converts text to token ids and back, using a vocabulary file.

    A subclass implements `_parse`, which sets the tokenizer `_rust` of the library `tokenizers` and raises
    any exception for a file that is not a vocabulary, and `_join`. A subclass that uses another library also
    implements `_encode_plain` and `encode_with_offsets`.

    Args:
        path: the vocabulary file, a local path or a URL.
        lower_case: whether text is lower-cased. None lower-cases if the vocabulary has no upper-case letters,
            except for a few stray tokens.
        strip_accents: whether accents are removed. None means the same as `lower_case`.
        template: how rows are assembled; None for `default_template`.
        normalizer: one of `normalizers`; "" for the first.

    Attributes:
        kind: the name of the kind in `families.KINDS`.
        continuation, word_start: the marks at the beginning of tokens that continue or start a word, or "".
        released_name: the name of the file in released models; "" for the first one of the kind.
        states_template: whether files of this kind contain the template of rows.
        keeps_case: whether only the vocabulary file determines how text is normalized.
        digest: the SHA-256 digest of the file's bytes in hexadecimal.
        is_continuation: bool [vocab_size]; True for tokens that continue a word.
        special_tokens: the spellings of the special tokens in a text, by role.
        special_ids: the ids of the special tokens by role; each is also an attribute, such as `pad_id`.
        added_tokens: tokens of this vocabulary that other programs find in a text before it is split into
            words, in the form of tokenizer.json. bert_jax treats them as text. A run does not record them.
        mask_strips: whether a mask in a text includes the whitespace before it, and after it. It only makes a
            difference for byte-level BPE.
    """

    kind: ClassVar[str]
    continuation: ClassVar[str] = ""
    word_start: ClassVar[str] = ""
    whitespace: ClassVar[frozenset[str]] = frozenset(_WHITESPACE)
    normalizers: ClassVar[tuple[str, ...]] = ("bert",)
    released_name: str = ""
    default_template: templates.Template = templates.BERT
    states_template: ClassVar[bool] = False
    keeps_case: bool = False
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS
    tokens: list[str]
    is_continuation: np.ndarray
    special_ids: dict[str, int]
    added_tokens: tuple[Mapping[str, Any], ...] = ()
    mask_strips: tuple[bool, bool] = (True, False)
    _rust: Any

    def __init__(
        self,
        path: str,
        lower_case: bool | None = None,
        strip_accents: bool | None = None,
        template: templates.Template | None = None,
        normalizer: str = "",
    ):
        self.path, self.normalizer = path, normalizer or self.normalizers[0]
        if self.normalizer not in self.normalizers:
            known = alternatives(self.normalizers)
            raise UserError(f"normalizer={normalizer}: expected {known} for the vocabulary {path}")
        with reading(f"the vocabulary {path}"):
            data = files.read(path)
        self.digest = hashlib.sha256(data).hexdigest()
        try:
            self._parse(data)
        except Exception as error:
            raise UserError(f"{path} is not a {self.kind} vocabulary ({first_line(error)})") from error
        self.template = template or self.default_template
        self.layout = self.template.layout(self.special_ids)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            self.special_ids[role] for role in SPECIAL_TOKENS
        )
        if self.keeps_case:
            if lower_case or strip_accents or normalizer == "albert":
                raise UserError(f"{path} fixes the normalization of text; omit --lower_case and --normalizer")
            lower_case = strip_accents = False
        self.lower_case = _almost_all(self.tokens, str.lower) if lower_case is None else lower_case
        if strip_accents is None:
            # A vocabulary of a script without capitals looks lower-cased, and may have marks of vowels.
            has_accents = lower_case is None and not _almost_all(self.tokens, _without_accents)
            strip_accents = self.lower_case and not has_accents
        self.strip_accents = strip_accents

    @abc.abstractmethod
    def _parse(self, data: bytes) -> None:
        """Sets `tokens`, `is_continuation` and `special_ids` from the content of the vocabulary file."""

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of texts, with spelled-out special tokens treated as plain text."""
        parallelism()
        texts = list(map(normalization.without_surrogates, texts))
        encodings = self._rust.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns the token ids of each text, as in `encode_batch`, and the characters of each token.

        Returns:
            For each text, int32 ids [n] and int32 spans [n, 2]: token i is `text[begin:end]`, without
                surrounding whitespace and including the accents that were stripped from it.
        """
        parallelism()
        texts = list(map(normalization.without_surrogates, texts))
        return [
            (np.array(encoding.ids, np.int32), np.array(encoding.offsets, np.int32).reshape(-1, 2))
            for encoding in self._rust.encode_batch(texts, add_special_tokens=False)
        ]

    @abc.abstractmethod
    def _join(self, tokens: Sequence[str]) -> str:
        """Returns the text of tokens."""

    def encode_batch(self, texts: Sequence[str], allow_special: Sequence[str] = ()) -> list[list[int]]:
        """Returns the token ids of each text, without [CLS] and [SEP] around them.

        Special tokens that are spelled out in a text are split like any other text, as in
        google-research/bert, so that a corpus cannot forge them. `allow_special` lists exceptions, such as
        ("[MASK]",).
        """
        texts = list(texts)
        if not allow_special:
            return self._encode_plain(texts)
        ids = {token: self.special_ids[role] for role, token in self.special_tokens.items()}
        special, whitespace = re.compile("|".join(map(re.escape, allow_special))), "".join(self.whitespace)
        pieces, found = [], [special.findall(text) for text in texts]
        for text, tokens in zip(texts, found, strict=True):
            parts = special.split(text)
            for i, token in enumerate(tokens):
                before, after = self.mask_strips if token == self.special_tokens["mask"] else (False, False)
                parts[i] = parts[i].rstrip(whitespace) if before else parts[i]
                parts[i + 1] = parts[i + 1].lstrip(whitespace) if after else parts[i + 1]
            pieces += parts
        plain = iter(self._encode_plain(pieces))
        result = []
        for tokens in found:
            row = list(next(plain))
            for token in tokens:
                row += [ids[token], *next(plain)]
            result.append(row)
        return result

    def after_space(self, text: str) -> str:
        """Returns a text to encode as a word or sentence after a space; only byte-level BPE changes it."""
        return text

    def spelling(self, token_id: int) -> str:
        """Returns a token as it is shown to a user."""
        return self.tokens[token_id]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids."""
        return self._join([self.tokens[i] for i in ids])

    def settings(self) -> dict[str, object]:
        """Returns a JSON-serializable description, from which `tokenization.restore` loads the tokenizer.

        The template and the normalizer are omitted if they are BERT's.
        """
        settings: dict[str, object] = {
            "kind": self.kind,
            "file": os.path.basename(self.path),
            "digest": self.digest,
            "size": self.vocab_size,
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
        }
        if self.template != templates.BERT:
            settings["template"] = dataclasses.asdict(self.template)
        if self.normalizer != self.normalizers[0]:
            settings["normalizer"] = self.normalizer
        return settings

    def __reduce__(self):
        options = self.lower_case, self.strip_accents, self.template, self.normalizer
        return _loaded, (type(self), files.absolute(self.path), *options)


@functools.lru_cache(maxsize=2)
def _loaded(cls: type[Tokenizer], path: str, *options) -> Tokenizer:
    """Returns an unpickled tokenizer. A process that unpickles it several times loads it once."""
    return cls(path, *options)


def find_special_tokens(ids: Collection[str], known: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns the spelling of each special token, by role, of a vocabulary with these tokens.

    `known` has the spellings of each role. Raises ValueError if a role has no token.
    """
    found = {role: next((x for x in spellings if x in ids), "") for role, spellings in known.items()}
    if missing := next((role for role, token in found.items() if not token), ""):
        raise ValueError(f"there is no {alternatives(known[missing])}")
    return found


def _almost_all(tokens: Sequence[str], function: Callable[[str], str]) -> bool:
    """Returns True if a function changes fewer than 5 of 1,000 tokens that are not spelled as special ones.

    Uncased vocabularies may contain a few stray capitals. In cased ones, a quarter of the tokens has one.
    """
    words = [token for token in tokens if not (token.startswith(("[", "<")) and token.endswith(("]", ">")))]
    return sum(word != function(word) for word in words) * 1000 < 5 * max(1, len(words))


def _without_accents(text: str) -> str:
    return normalization.fold(text, lower_case=False, strip_accents=True)


def parallelism() -> bool:
    """Returns True if this process may encode on all cores, which $TOKENIZERS_PARALLELISM determines.

    If it is not set, the first call in a process started by `multiprocessing` sets it to false.
    """
    if multiprocessing.parent_process() is not None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    value = os.environ.get("TOKENIZERS_PARALLELISM", "true")
    return value.lower() not in ("", "0", "f", "false", "n", "no", "off")
