"""The vocabulary of records, and whether a checkpoint has the same."""

from __future__ import annotations

import os

from bert_jax import tokenization
from bert_jax.data import manifests
from bert_jax.data.rows import Dataset
from bert_jax.errors import UserError
from bert_jax.tokenization import Tokenizer


def of_records(dataset: Dataset) -> Tokenizer:
    """Returns the tokenizer of records.

    Raises:
        UserError: the vocabulary beside the records is not the one that they were made with.
    """
    settings = dataset.manifest["vocabulary"]
    return tokenization.restore(manifests.vocabulary_path(dataset.directory, settings), settings)


def check(field: str, path: os.PathLike | str, theirs: Tokenizer, tokenizer: Tokenizer) -> None:
    """Raises UserError unless a checkpoint has the vocabulary, the text and the form of rows of the data.

    A checkpoint may keep accents that the records do not have, since `data` has no flag for it.

    Args:
        field: the field of the configuration, or the flag, that names the checkpoint.
        path: the checkpoint.
        theirs: its tokenizer.
        tokenizer: the tokenizer of the data.
    """
    problem = ""
    if theirs.tokens != tokenizer.tokens:
        problem = "another vocabulary; make the records with its vocabulary"
    elif theirs.template != tokenizer.template:
        problem = f"rows {theirs.template.pair!r}, and the records have {tokenizer.template.pair!r}"
    elif theirs.strip_accents and not tokenizer.strip_accents and theirs.lower_case == tokenizer.lower_case:
        problem = "text without accents, and the records have them; use `bert-jax data --lower_case`"
    for name in ("lower_case", "normalizer"):
        expected, actual = getattr(theirs, name), getattr(tokenizer, name)
        if not problem and expected != actual:
            flag = f"--{name}={str(expected).lower()}"
            problem = f"{name}={expected}, and the records with {actual}; use `bert-jax data {flag}`"
    if problem:
        raise UserError(f"{field}={path} was trained with {problem}")
