"""Record directories of either schema: opens them, counts their tokens, and checks their vocabulary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import google, manifests, packed
from bert_jax.data.rows import Dataset
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files
from bert_jax.tokenization import Tokenizer

_DATASETS = {packed.SCHEMA: packed.PackedDataset, google.SCHEMA: google.GoogleDataset}
_ROWS = 1024  # rows whose tokens are counted together


def open_dataset(data_dir: str, split: str, vocab: str = "") -> Dataset:
    """Opens one split of one or more record directories, separated by commas, as one dataset.

    `vocab` is the vocabulary of google records that another program wrote; the records of `bert-jax data`
    contain theirs.

    Raises:
        UserError: a directory or the split does not exist, the split is empty, the files do not match the
            manifest, the directories have different schemas, vocabularies or lengths, or a vocabulary is
            missing or has no effect.
    """
    directories = _directories(data_dir, vocab)
    manifests.check_alike(directories, split)
    dataset = open_split(directories, split)
    if not len(dataset):
        raise UserError(f"the split {split!r} of {','.join(name for name, _ in directories)} is empty")
    if isinstance(dataset, google.GoogleDataset):
        dataset.batch(np.arange(min(len(dataset), 256)))  # reports a wrong vocabulary right away
    return dataset


def open_split(directories: Sequence[tuple[str, dict[str, Any]]], split: str) -> Dataset:
    """Opens one split, which may be empty, of (directory, manifest) pairs that belong together."""
    return _DATASETS[directories[0][1]["schema"]](directories, split)


def _directories(data_dir: str, vocab: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (directory, manifest) pairs of record directories."""
    names = comma_lists.paths(data_dir) or [""]
    foreign = {name: found for name in names if (found := foreign_files(name))}
    if foreign and not vocab:
        raise UserError(
            f"{next(iter(foreign))} has no {manifests.FILE}; --config.data.vocab is needed for such records"
        )
    directories = [
        (name, google.describe(name, foreign[name], vocab))
        if name in foreign
        else (name, manifests.read(name))
        for name in names
    ]
    if vocab and not foreign:
        raise UserError(f"--config.data.vocab={vocab} has no effect, because {data_dir} has a vocabulary")
    return directories


def foreign_files(directory: str) -> list[str]:
    """Returns the names of the record files in a directory that `bert-jax data` did not write.

    The list is empty for a directory with a manifest or with the unfinished work of `bert-jax data`.
    """
    if not files.is_directory(directory) or files.exists(os.path.join(directory, manifests.FILE)):
        return []
    if "unfinished" in files.names(directory):
        return []
    return list(filter(google.is_record_file, files.names(directory)))


def tokenizer_of(dataset: Dataset) -> Tokenizer:
    """Returns the tokenizer of records; see `load_tokenizer`."""
    return load_tokenizer(dataset.directory, dataset.manifest)


def load_tokenizer(directory: str, manifest: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer of a record directory. Raises UserError if the vocabulary was changed."""
    settings = manifest["vocabulary"]
    file = settings["file"]  # a URL or an absolute path if another program made the records
    return tokenization.restore(file if files.is_remote(file) else os.path.join(directory, file), settings)


def check_vocabulary(field: str, path: os.PathLike | str, theirs: Tokenizer, tokenizer: Tokenizer) -> None:
    """Raises UserError unless a checkpoint has the vocabulary, normalization and row template of the data.

    A checkpoint may keep accents that the records lack, because `data` has no flag for it. `field` is the
    field of the configuration, or the flag, that names the checkpoint; `theirs` is its tokenizer.
    """
    settings: dict[str, tuple[Any, Any]] = {
        name: (getattr(theirs, name), getattr(tokenizer, name)) for name in ("lower_case", "normalizer")
    }
    settings["template"] = theirs.template.pair, tokenizer.template.pair
    settings["strip_accents"] = theirs.strip_accents, theirs.strip_accents and tokenizer.strip_accents
    if theirs.tokens != tokenizer.tokens:
        raise UserError(f"{field}={path} was trained with another vocabulary than the records")
    for name, (expected, found) in settings.items():
        if expected != found:
            raise UserError(f"{field}={path} was trained with {name}={expected}; the records have {found}")


def count_tokens(dataset: Dataset, vocab_size: int, limit: int = 2**24) -> np.ndarray:
    """Counts the tokens of evenly spaced rows, int64 [vocab_size], at most about `limit` tokens.

    All processes and resumed runs count the same. In masked rows, the original tokens are counted.
    """
    rows = min(len(dataset), max(1, limit // dataset.max_seq_length))
    indices = np.linspace(0, len(dataset) - 1, rows).round().astype(np.int64)
    counts = np.zeros(vocab_size, np.int64)
    for start in range(0, rows, _ROWS):
        batch = google.without_masks(dataset.batch(indices[start : start + _ROWS]))
        real = np.arange(dataset.max_seq_length) < batch["lengths"][:, None]
        counts += np.bincount(batch["input_ids"][real], minlength=vocab_size)
    return counts


def unigram_loss(counts: np.ndarray, known: np.ndarray) -> float:
    """Returns the loss, in nats per token, of predicting each token by its frequency alone.

    A model that uses the context has to be better. `counts` [V] is how often each token has to be predicted,
    and `known` [V] gives the frequencies; 1 is added to each, so that no token has probability 0.
    """
    shares = (known + 1) / (known + 1).sum()
    predicted = counts > 0
    return float(-(counts[predicted] * np.log(shares[predicted])).sum() / counts.sum())
