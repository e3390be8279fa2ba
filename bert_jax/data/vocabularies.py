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

    Accents that the records keep and the checkpoint does not are refused. The reverse is not, since `data`
    has no flag for it; where it matters, the vocabulary has tokens with accents, and `data` keeps them.

    Args:
        field: the field of the configuration, or the flag, that names the checkpoint.
        path: the checkpoint.
        theirs: its tokenizer.
        tokenizer: the tokenizer of the data.
    """
    if theirs.tokens != tokenizer.tokens:
        raise UserError(
            f"{field}={path} was trained with another vocabulary than that of the records; make the records "
            "with its vocabulary"
        )
    for setting in ("lower_case", "normalizer"):
        wanted, found = getattr(theirs, setting), getattr(tokenizer, setting)
        if wanted != found:
            flag = f"--{setting}={str(wanted).lower()}"
            raise UserError(
                f"{field}={path} was trained on text with {setting}={wanted}, and the records were made with "
                f"{setting}={found}; make them again with `bert-jax data {flag}`"
            )
    if theirs.strip_accents and not tokenizer.strip_accents:
        raise UserError(
            f"{field}={path} was trained on text without accents, and the records have them; make them again "
            "with `bert-jax data --lower_case`"
        )
    if theirs.template != tokenizer.template:
        raise UserError(
            f"{field}={path} was trained with rows {theirs.template.pair!r}, and the records have "
            f"{tokenizer.template.pair!r}; make records of the form of the checkpoint"
        )
