"""The interface that every tokenizer has, and what they share: files, digests, special tokens, processes."""

import abc
import hashlib
import multiprocessing
import os
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.errors import UserError, file_error
from bert_jax.io import files
from bert_jax.tokenization import templates

# How a special token is spelled in a text, by its role.
SPECIAL_TOKENS = {role: f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}


class Tokenizer(abc.ABC):
    """Text to token ids and back, by a vocabulary file.

    Attributes:
      kind: "wordpiece" or "sentencepiece".
      path: The vocabulary file.
      digest: Hexadecimal SHA-256 of the file's bytes.
      lower_case: Whether text is lower-cased before it is split.
      strip_accents: Whether accents are removed; the reference's do_lower_case is both.
      tokens: Tokens by id.
      is_continuation: bool [vocab_size]; True where a token continues a word.
      special_tokens: Spellings of the special tokens in a text, by role ("pad", "unk", "cls", "sep", "mask").
      special_ids: Ids of the special tokens by role.
      layout: How rows are put together, with this vocabulary's ids.
    """

    kind: str
    template: templates.Template = templates.BERT
    special_tokens: Mapping[str, str] = SPECIAL_TOKENS

    def __init__(
        self,
        path: str,
        digest: str,
        tokens: list[str],
        is_continuation: np.ndarray,
        special_ids: Mapping[str, int],
        lower_case: bool,
        strip_accents: bool,
    ):
        self.path = path
        self.digest = digest
        self.tokens = tokens
        self.is_continuation = is_continuation
        self.special_ids = dict(special_ids)
        self.layout = self.template.layout(self.special_ids)
        self.lower_case = lower_case
        self.strip_accents = strip_accents

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        return self.special_ids["pad"]

    @property
    def unk_id(self) -> int:
        return self.special_ids["unk"]

    @property
    def cls_id(self) -> int:
        return self.special_ids["cls"]

    @property
    def sep_id(self) -> int:
        return self.special_ids["sep"]

    @property
    def mask_id(self) -> int:
        return self.special_ids["mask"]

    @abc.abstractmethod
    def _encode_plain(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts in which nothing is special."""

    @abc.abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Token ids of each text, as `encode_batch` gives them, and the characters that they stand for.

        Returns:
          For each text int32 ids [n] and int32 [n, 2]: token i is `text[begin:end]`, without the whitespace
          around it, with the accents that were stripped from it.
        """

    @abc.abstractmethod
    def _join(self, tokens: Sequence[str]) -> str:
        """Text from tokens."""

    def encode_batch(self, texts: Sequence[str], allow_special: Sequence[str] = ()) -> list[list[int]]:
        """Token ids of each text, without [CLS] and [SEP] around them.

        Special tokens spelled out in a text are split like any other text, as google-research/bert does, so
        that a corpus can't forge them.

        Args:
          texts: Any text; empty and blank ones give no ids.
          allow_special: Special tokens that are recognised where they are spelled out, such as ("[MASK]",).

        Returns:
          One list of ids a text.

        Raises:
          UserError: `allow_special` names something that is not a special token.
        """
        texts = list(texts)
        if not allow_special:
            return self._encode_plain(texts)
        known = self.special_tokens.values()
        if unknown := [token for token in allow_special if token not in known]:
            raise UserError(
                f"{unknown[0]!r} is not a special token; the special tokens are {', '.join(known)}"
            )
        return self._encode_with_special(texts, allow_special)

    def _encode_with_special(self, texts: list[str], allowed: Sequence[str]) -> list[list[int]]:
        pieces: list[str] = []
        owners: list[int] = []
        for owner, text in enumerate(texts):
            rest = [text]
            for name in allowed:
                rest = [part for piece in rest for part in _separate(piece, name, allowed)]
            pieces += rest
            owners += [owner] * len(rest)
        ids = {token: self.special_ids[role] for role, token in self.special_tokens.items()}
        plain = iter(self._encode_plain([piece for piece in pieces if piece not in allowed]))
        result: list[list[int]] = [[] for _ in texts]
        for owner, piece in zip(owners, pieces, strict=True):
            result[owner] += [ids[piece]] if piece in allowed else next(plain)
        return result

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Text of token ids: word pieces joined into words, words separated by spaces.

        Raises:
          UserError: An id is outside the vocabulary.
        """
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise UserError(
                    f"token id {i} is outside the vocabulary {self.path}, whose last is "
                    f"{self.vocab_size - 1}; were these ids made with another vocabulary?"
                )
        hidden = set(self.special_ids.values()) if skip_special else ()
        return self._join([self.tokens[i] for i in ids if i not in hidden])

    def settings(self) -> dict[str, object]:
        """JSON-able description; `load` with the path and its two flags restores the tokenizer."""
        return {
            "kind": self.kind,
            "file": os.path.basename(self.path),
            "digest": self.digest,
            "size": self.vocab_size,
            "lower_case": self.lower_case,
            "strip_accents": self.strip_accents,
        }

    def __reduce__(self):
        return type(self), (self.path, self.lower_case, self.strip_accents)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.path!r}, {self.vocab_size} tokens, "
            f"lower_case={self.lower_case}, strip_accents={self.strip_accents})"
        )


def _separate(piece: str, name: str, allowed: Sequence[str]) -> list[str]:
    """Splits a piece of text around each occurrence of a special token, which becomes a piece of its own."""
    if piece in allowed:
        return [piece]
    parts = piece.split(name)
    separated = [parts[0]]
    for part in parts[1:]:
        separated += [name, part]
    return [part for part in separated if part]


def read_vocabulary_file(path: str) -> tuple[bytes, str]:
    """The bytes of a vocabulary file, local or remote, and their SHA-256.

    Raises:
      UserError: The file is missing, unreadable or empty.
    """
    hint = "`bert-jax vocab --input=GLOB --output=FILE` makes one"
    try:
        data = files.read(path)
    except FileNotFoundError:
        raise UserError(f"no vocabulary file {path}; {hint}") from None
    except OSError as error:
        reason = error.strerror or error
        message = f"can't read the vocabulary {path}: {reason}; expected a vocab.txt or a .model"
        raise file_error(message, error) from None
    if not data.strip():
        raise UserError(f"the vocabulary file {path} is empty; {hint}")
    return data, hashlib.sha256(data).hexdigest()


def looks_lower_case(tokens: Sequence[str]) -> bool:
    """Whether a vocabulary is of lower-cased text: fewer than 5 of 1,000 tokens have an upper-case letter.

    The released uncased vocabularies have none and the cased ones more than one in four; a vocabulary of
    another origin may carry a few stray capitals.
    """
    words = [token for token in tokens if not (token.startswith(("[", "<")) and token.endswith(("]", ">")))]
    return sum(word != word.lower() for word in words) * 1000 < 5 * max(1, len(words))


def set_parallelism(enabled: bool) -> None:
    """Lets one process encode on all cores (True) or on one (False); worker processes want one each.

    Until it is called, or TOKENIZERS_PARALLELISM is set in the environment, the main process uses all cores
    and a process started by `multiprocessing` uses one.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if enabled else "false"


def parallelism() -> bool:
    """Whether encoding may use all cores in this process; a worker process decides it on its first call."""
    value = os.environ.get("TOKENIZERS_PARALLELISM")
    if value is None:
        if multiprocessing.parent_process() is None:
            return True
        set_parallelism(False)
        return False
    return value.lower() not in ("", "0", "f", "false", "n", "no", "off")
