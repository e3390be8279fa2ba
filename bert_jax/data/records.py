"""Opens record directories of either schema, depending on their contents."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np

from bert_jax.data import google, manifests, packed, tfrecord, verification
from bert_jax.errors import UserError
from bert_jax.io import files


class Dataset(Protocol):
    """Random access to the rows of one split, as the loader and pre-training use it."""

    manifest: dict[str, Any]
    max_seq_length: int  # L
    max_sequences_per_row: int  # S
    vocab_size: int
    files: list[tfrecord.RecordFile]

    def __len__(self) -> int: ...

    def locate(self, index: int) -> tuple[str, int]:
        """Returns the path of a row's file and the byte offset of the row in it."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a batch of rows; see `packed.PackedDataset.batch` and `google.GoogleDataset.batch`."""


def open_dataset(data_dir: str, split: str, vocab: str = "", index_dir: str = "") -> Dataset:
    """Opens one split of one or more record directories, separated by commas, as one dataset.

    Args:
        data_dir: the record directories.
        split: the name of the split.
        vocab: the vocabulary of google records that another program wrote; the records of `bert-jax data`
            contain theirs.
        index_dir: the directory in which indices are saved if that of the record files is not writable; ""
            saves them nowhere.

    Raises:
        UserError: as in `packed.open_dataset`; or there is no manifest and no vocabulary is given, a
            vocabulary is given for records that contain one, or the schemas of the directories differ.
    """
    names = [name.strip() for name in data_dir.split(",") if name.strip()]
    foreign = {name: found for name in names if (found := foreign_files(name))}
    schemas = {name: _schema(name) for name in names if name not in foreign}
    if not foreign and google.SCHEMA not in schemas.values():
        dataset = packed.open_dataset(data_dir, split)
        _check_no_vocab(vocab, data_dir)
        return dataset
    for name, schema in schemas.items():
        if schema != google.SCHEMA:
            raise UserError(
                f"{name} holds {schema} records and {data_dir} google ones too: one run reads one schema"
            )
    if foreign and not vocab:
        raise UserError(
            f"{next(iter(foreign))} holds record files and no {manifests.FILE}: if they are google-research/"
            "bert's, name their vocabulary in data.vocab; if `bert-jax data` did not finish, run it again"
        )
    if not foreign:
        _check_no_vocab(vocab, data_dir)
    directories = [
        (name, google.describe(name, foreign[name], vocab, index_dir))
        if name in foreign
        else (name, manifests.read(name, google.SCHEMA))
        for name in names
    ]
    verification.report_unchecked([one for one in directories if one[0] not in foreign])
    manifests.check_alike(directories, split, ("max_seq_length", "max_predictions_per_seq"))
    dataset = google.GoogleDataset(directories, split, index_dir)
    if not len(dataset):
        raise UserError(f"the split {split!r} of {data_dir} is empty")
    dataset.batch(np.arange(min(len(dataset), 256)))  # reports a wrong vocabulary right away
    return dataset


def foreign_files(directory: str) -> list[str]:
    """Returns the names of the record files in a directory that `bert-jax data` did not write.

    The list is empty for a directory with a manifest or with the unfinished work of `bert-jax data`.
    """
    if not files.is_directory(directory) or files.exists(os.path.join(directory, manifests.FILE)):
        return []
    if "unfinished" in files.names(directory):
        return []
    return google.list_files(directory)


def _schema(directory: str) -> str:
    """Returns the schema in a directory's manifest.

    Without a manifest it returns that of packed records, whose reader reports the missing manifest.
    """
    if not files.exists(os.path.join(directory, manifests.FILE)):
        return packed.SCHEMA
    return manifests.read(directory)["schema"]


def _check_no_vocab(vocab: str, data_dir: str) -> None:
    if vocab:
        raise UserError(
            f"data.vocab={vocab} is for records without a {manifests.FILE}; {data_dir} carries its own "
            "vocabulary: leave data.vocab empty"
        )
