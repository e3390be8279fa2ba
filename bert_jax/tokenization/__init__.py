"""WordPiece and SentencePiece behind one small interface: `load(path)` gives a `Tokenizer`."""

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
    """Loads a vocabulary.

    Args:
      path: A WordPiece vocab.txt, a SentencePiece .model, or a directory with vocab.txt, vocab.model,
        spiece.model or tokenizer.model; local or a URL.
      lower_case: None detects it from the vocabulary.
      strip_accents: None means as lower_case.

    Returns:
      The tokenizer; it can be pickled for another process, which reads the file again.

    Raises:
      UserError: No such file, or not a vocabulary BERT can use; the message says what is wrong.
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
