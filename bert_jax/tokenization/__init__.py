"""Provides one interface to tokenizers of several kinds: `load(path)` returns a `Tokenizer`."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from bert_jax.errors import UserError
from bert_jax.io import files
from bert_jax.tokenization import huggingface, templates
from bert_jax.tokenization.families import FILE_NAMES, KINDS, find, load_file, of_file
from bert_jax.tokenization.interface import SPECIAL_TOKENS, Tokenizer

__all__ = ("FILE_NAMES", "KINDS", "SPECIAL_TOKENS", "Tokenizer", "find", "load", "of_file", "restore")


def load(
    path: str | os.PathLike,
    *,
    lower_case: bool | None = None,
    strip_accents: bool | None = None,
    template: templates.Template | None = None,
    normalizer: str = "",
    log: Callable[[str], None] = lambda line: None,
) -> Tokenizer:
    """Loads a tokenizer from its vocabulary.

    Args:
        path: a WordPiece vocab.txt, a SentencePiece .model, the tokenizer.json of byte-level BPE, or a
            directory with one of FILE_NAMES or with vocab.json and merges.txt; a local path or a URL.
            The settings of a Hugging Face folder are read from its files; see `huggingface.read_tokenizer`.
        lower_case: whether text is lower-cased. None uses the setting of a folder, or detects it from the
            vocabulary.
        strip_accents: whether accents are removed; None means the same as `lower_case`.
        template: how rows are assembled, which depends on the model family. None uses the template of a
            folder or of tokenizer.json, and BERT's template with another kind of vocabulary.
        normalizer: how text is normalized, which depends on the model family: "bert", or, with a
            SentencePiece model, "albert". "" uses the normalizer of a folder, or else "bert".
        log: called with one line of text for each notice about a folder.

    Returns:
        The tokenizer. It can be pickled; the process that unpickles it reads the file again.

    Raises:
        UserError: the file does not exist, or is not a vocabulary that BERT can use.
    """
    path = os.fspath(path)
    if not files.is_directory(path):
        return load_file(path, lower_case, strip_accents, template, normalizer)
    found = huggingface.read_tokenizer(
        path,
        log=log,
        lower_case=lower_case,
        strip_accents=strip_accents,
        template=template,
        normalizer=normalizer,
    )
    if found is None:
        raise UserError(f"{path}: the directory has no vocabulary; expected one of {', '.join(FILE_NAMES)}")
    return found


def restore(path: str | os.PathLike, settings: Mapping[str, Any]) -> Tokenizer:
    """Loads the tokenizer that `Tokenizer.settings` describes. Raises UserError if the file was changed.

    Missing settings have their default values.
    """
    names = ("lower_case", "strip_accents")
    options = {name: settings[name] for name in names if name in settings}
    options["normalizer"] = settings.get("normalizer", "bert")
    tokenizer = load(path, template=templates.of(settings), **options)
    if settings.get("digest", "") not in ("", tokenizer.digest):
        raise UserError(f"{tokenizer.path} was changed: the files in its directory need the original one")
    return tokenizer
