"""Opens record directories of either schema, depending on their contents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax.data import google, manifests, packed
from bert_jax.data.rows import Dataset
from bert_jax.errors import UserError
from bert_jax.io import comma_lists, files


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
        UserError: a directory or the split does not exist, the split is empty, the files do not match the
            manifest, the directories have different schemas, vocabularies or lengths, there is no manifest
            and no vocabulary is given, or a vocabulary is given for records that contain one.
    """
    return _open(_directories(data_dir, vocab, index_dir), split, index_dir)


def _directories(data_dir: str, vocab: str, index_dir: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns (directory, manifest) pairs of record directories with the same schema."""
    names = comma_lists.paths(data_dir) or [""]
    foreign = {name: found for name in names if (found := foreign_files(name))}
    if foreign and not vocab:
        raise UserError(
            f"{next(iter(foreign))} holds record files and no {manifests.FILE}: if they are google-research/"
            "bert's, name their vocabulary in data.vocab; if `bert-jax data` did not finish, run it again"
        )
    directories = [
        (name, google.describe(name, foreign[name], vocab, index_dir))
        if name in foreign
        else (name, manifests.read(name))
        for name in names
    ]
    if vocab and not foreign:
        raise UserError(
            f"data.vocab={vocab} is for records without a {manifests.FILE}; the records in {data_dir} "
            "have a vocabulary of their own: leave data.vocab empty"
        )
    schemas = {manifest["schema"]: name for name, manifest in directories}
    if len(schemas) > 1:
        raise UserError(
            f"{schemas[packed.SCHEMA]} holds packed records and {schemas[google.SCHEMA]} google ones: one "
            "run reads one schema"
        )
    return directories


def _open(directories: Sequence[tuple[str, dict[str, Any]]], split: str, index_dir: str) -> Dataset:
    """Opens one split of record directories as one dataset."""
    manifests.check_alike(directories, split)
    of_google = directories[0][1]["schema"] == google.SCHEMA
    dataset: Dataset
    if of_google:
        dataset = google.GoogleDataset(directories, split, index_dir)
    else:
        dataset = packed.PackedDataset(directories, split, index_dir)
    if not len(dataset):
        raise UserError(f"the split {split!r} of {','.join(name for name, _ in directories)} is empty")
    if of_google:
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
