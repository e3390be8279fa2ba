"""Provides one interface to tokenizers of several kinds: `load(path)` returns a `Tokenizer`."""

import os

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tokenization.interface import SPECIAL_TOKENS, Tokenizer, set_parallelism
from bert_jax.tokenization.kinds import FILE_NAMES, KINDS, find

__all__ = ["FILE_NAMES", "KINDS", "SPECIAL_TOKENS", "Tokenizer", "find", "load", "set_parallelism"]


def load(
    path: str | os.PathLike, *, lower_case: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """Loads a tokenizer from its vocabulary.

    Args:
        path: A WordPiece vocab.txt, a SentencePiece .model, or a directory with one of FILE_NAMES; a local
            path or a URL.
        lower_case: Whether text is lower-cased; None detects it from the vocabulary.
        strip_accents: Whether accents are removed; None means the same as `lower_case`.

    Returns:
        The tokenizer. It can be pickled; the process that unpickles it reads the file again.

    Raises:
        UserError: There is no such file, or it is not a vocabulary that BERT can use; the message says what
            is wrong.
    """
    path = os.fspath(path)
    if not path:
        raise UserError("no vocabulary given; expected a vocab.txt or a SentencePiece .model")
    if files.is_directory(path):
        found = find(path)
        if found is None:
            names = ", ".join(FILE_NAMES)
            raise UserError(f"no vocabulary in the directory {path}; expected one of {names}")
        path = found
    kinds = [kind for kind in KINDS.values() if path.endswith(kind.ending)]
    return (kinds or [KINDS["wordpiece"]])[0].tokenizer()(path, lower_case, strip_accents)
