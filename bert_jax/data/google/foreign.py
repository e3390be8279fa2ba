"""Describes directories of google records that other programs wrote, which have no manifest."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import tfrecord
from bert_jax.data.google.dataset import LABELS, SCHEMA, features
from bert_jax.errors import UserError
from bert_jax.io import files

_FILE_NAME = re.compile(r".+\.tf_?records?(-\d+-of-\d+)?")
_ANY_ID = 1 << 31


def list_files(directory: str) -> list[str]:
    """Returns the sorted names of the record files in a directory."""
    return sorted(name for name in files.names(directory) if _FILE_NAME.fullmatch(name))


def is_record_file(path: str) -> bool:
    """Returns whether a path is named like a record file: NAME.tfrecord, NAME.tfrecord-00000-of-00010, ..."""
    return bool(_FILE_NAME.fullmatch(os.path.basename(path)))


def describe(directory: str, names: Sequence[str], vocab: str, index_dir: str = "") -> dict[str, Any]:
    """Returns a manifest for record files that have none.

    Files whose names start with "eval" form the split `eval`, all others the split `train`.

    Args:
        directory: the directory of the record files.
        names: the names of the record files.
        vocab: the vocabulary with which the records were made; "" if it is unknown, which accepts any id.
        index_dir: see `tfrecord.RecordFile`.

    Raises:
        UserError: there are no rows, or they do not follow this schema.
    """
    digest = hashlib.sha256()
    listed: dict[str, list[dict[str, Any]]] = {}
    shape: tuple[int, int, bool] | None = None
    for name in names:
        file = tfrecord.RecordFile(os.path.join(directory, name), index_dir)
        split = "eval" if name.startswith("eval") else "train"
        listed.setdefault(split, []).append({"name": name, "rows": len(file), "bytes": file.size})
        digest.update(os.fsencode(f"{name} {file.size} {len(file)}\n"))
        if len(file):
            digest.update(file[0] + file[len(file) - 1])
            shape = shape or _shape(file)
    if shape is None:
        raise UserError(f"the record files of {directory} are empty: make them anew")
    if vocab:
        tokenizer = tokenization.load(vocab)
        settings = tokenizer.settings() | {"file": files.absolute(vocab)}
        special_ids = dict(tokenizer.special_ids)
    else:
        settings, special_ids = {"size": _ANY_ID, "digest": ""}, {}
    return {
        "schema": SCHEMA,
        "max_seq_length": shape[0],
        "max_sequences_per_row": 1,
        "max_predictions_per_seq": shape[1],
        "nsp": "next" if shape[2] else "none",
        "vocabulary": settings,
        "special_ids": special_ids,
        "sources": [],
        "fingerprint": digest.hexdigest(),
        "splits": {split: _uncounted(entries) for split, entries in listed.items()},
    }


def _uncounted(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a manifest's entry for a split of which only the number of rows is known."""
    rows = sum(file["rows"] for file in entries)
    counts = dict.fromkeys(("documents", "tokens", "random_next"), 0)
    return counts | {"rows": rows, "sequences": rows, "files": entries}


def _shape(file: tfrecord.RecordFile) -> tuple[int, int, bool]:
    """Returns (L, P, whether there is a next-sentence label) of the first record of a file."""
    found = features(file[0], file.path, int(file.offsets[0]))
    length = int(np.count_nonzero(np.frombuffer(found["input_ids"], np.uint8) < 128))
    return length, len(found["masked_lm_weights"]) // 4, LABELS in found
