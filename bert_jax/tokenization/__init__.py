"""Provides one interface to WordPiece and SentencePiece: `load(path)` returns a `Tokenizer`."""

import os

from etils import epy

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tokenization.interface import SPECIAL_TOKENS, Tokenizer, set_parallelism

with epy.lazy_imports():
    from bert_jax.tokenization import sentence_piece, wordpiece

__all__ = ["SPECIAL_TOKENS", "Tokenizer", "load", "set_parallelism"]

_FILE_NAMES = ("vocab.txt", "vocab.model", "spiece.model", "tokenizer.model")


def load(
    path: str | os.PathLike, *, lower_case: bool | None = None, strip_accents: bool | None = None
) -> Tokenizer:
    """Loads a tokenizer from its vocabulary.

    Args:
        path: A WordPiece vocab.txt, a SentencePiece .model, or a directory with vocab.txt, vocab.model,
            spiece.model or tokenizer.model; a local path or a URL.
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
        found = [name for name in _FILE_NAMES if files.exists(os.path.join(path, name))]
        if not found:
            names = ", ".join(_FILE_NAMES)
            raise UserError(f"no vocabulary in the directory {path}; expected one of {names}")
        path = os.path.join(path, found[0])
    if path.endswith(".model"):
        return sentence_piece.SentencePieceTokenizer(path, lower_case, strip_accents)
    return wordpiece.WordPieceTokenizer(path, lower_case, strip_accents)
