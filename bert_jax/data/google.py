"""Reads the `google` schema: the statically masked rows of google-research/bert's create_pretraining_data.

A row is a tf.train.Example, padded with zeros: int64 [L] `input_ids`, `input_mask`, `segment_ids` (newer:
`input_word_ids`, `input_type_ids`); int64 [P] `masked_lm_positions`, `masked_lm_ids` and float [P]
`masked_lm_weights`; int64 [1] `next_sentence_labels`. Directories that `bert-jax data` wrote have a manifest.
Directories of other programs hold only record files, and the shapes are read from the first record.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax import tokenization
from bert_jax.data import tf_example, tfrecord
from bert_jax.data.rows import Dataset
from bert_jax.io import files
from bert_jax.io.wording import counted

SCHEMA = "google"
_NEWER_NAMES = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
LABELS = "next_sentence_labels"
_BY_TOKEN = ("input_ids", "input_mask", "segment_ids")
_BY_PREDICTION = ("masked_lm_positions", "masked_lm_ids")
_WEIGHTS = "masked_lm_weights"

_FILE_NAME = re.compile(r".+\.tf_?records?(-\d+-of-\d+)?")
_ANY_ID = 1 << 31


class GoogleDataset(Dataset):
    """Random access to the rows of one split; `max_predictions` is P."""

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str):
        super().__init__(directories, split)
        self.max_predictions = int(self.manifest["max_predictions_per_seq"])

    def _assemble(self, rows: list[Mapping[str, Any]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        length, most = self.max_seq_length, self.max_predictions
        ids, mask, segments = (_values(rows, name, length) for name in _BY_TOKEN)
        positions, labels, weights = (_values(rows, name, most) for name in (*_BY_PREDICTION, _WEIGHTS))
        nsp = np.full((len(rows), 1), -1)
        labeled = [place for place, row in enumerate(rows) if LABELS in row]
        nsp[labeled] = _values([rows[place] for place in labeled], LABELS, 1)

        lengths = mask.sum(axis=1)
        real = np.arange(length) < lengths[:, None]
        seconds = (segments * real).sum(axis=1)
        firsts = lengths - seconds
        used = weights > 0
        positions, labels = np.where(used, positions, 0), np.where(used, labels, 0)
        largest = np.maximum(ids.max(axis=1), labels.max(axis=1, initial=0))
        fault = np.full(len(rows), "", object)

        def check(wrong: Any, reason: str) -> None:
            fault[wrong & (fault == "")] = reason

        check((mask != real).any(axis=1) | (lengths < 1), "input_mask is not ones and then zeros")
        in_second = real & (np.arange(length) >= firsts[:, None])
        check((segments != in_second).any(axis=1) | (firsts < 1), "segment_ids are not zeros and then ones")
        check((ids < 0).any(axis=1) | (labels < 0).any(axis=1), "a token id is negative")
        check(
            ((positions < 0) | (positions >= lengths[:, None])).any(axis=1),
            "a masked position is outside of the row's tokens",
        )
        check(~np.isfinite(weights).all(axis=1) | (weights < 0).any(axis=1), "a weight is not positive")
        check(((nsp < -1) | (nsp > 1)).any(axis=1), "the next-sentence label is not 0 or 1")
        for row in np.flatnonzero((largest >= self.vocab_size) & (fault == "")):
            fault[row] = f"the token id {largest[row]} is outside the vocabulary of {self.vocab_size}"
        return {
            "input_ids": ids.astype(np.int32),
            "lengths": lengths.astype(np.int32),
            "starts": np.zeros((len(rows), 1), np.int32),
            "first_lengths": firsts[:, None].astype(np.int32),
            "next_sentence_labels": nsp.astype(np.int32),
            "masked_positions": positions.astype(np.int32),
            "masked_labels": labels.astype(np.int32),
            "masked_weights": weights,
        }, fault


def without_masks(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a batch of any schema with the original tokens of its rows, and without `masked_*`."""
    batch = dict(batch)
    if "masked_positions" not in batch:
        return batch
    positions, labels, weights = (batch.pop(f"masked_{name}") for name in ("positions", "labels", "weights"))
    rows, slots = np.nonzero(weights > 0)
    batch["input_ids"] = batch["input_ids"].copy()
    batch["input_ids"][rows, positions[rows, slots]] = labels[rows, slots]
    return batch


def _values(rows: list[Mapping[str, Any]], name: str, width: int) -> np.ndarray:
    """Returns one feature of all rows, int64 [B, width]; float32 for weights. ValueError for others."""
    values = [_numbers(row, name) for row in rows]
    if any(len(one) != width for one in values):
        raise ValueError(f"{name} does not have {counted(width, 'value')}")
    return np.array(values, np.float32 if name == _WEIGHTS else np.int64).reshape(len(rows), width)


def _numbers(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    feature = row[name if name in row else _NEWER_NAMES.get(name, name)]
    return feature.float_list.value if name == _WEIGHTS else feature.int64_list.value


def is_record_file(path: str) -> bool:
    """Returns whether a path is named like a record file: NAME.tfrecord, NAME.tfrecord-00000-of-00010, ..."""
    return bool(_FILE_NAME.fullmatch(os.path.basename(path)))


def describe(directory: str, names: Sequence[str], vocab: str) -> dict[str, Any]:
    """Returns a manifest for record files that have none.

    Files whose names start with "eval" form the split `eval`; all others form the split `train`. `vocab` is
    the vocabulary with which the records were made; "" if it is unknown, which accepts any id.
    """
    digest = hashlib.sha256()
    listed: dict[str, list[dict[str, Any]]] = {}
    shape = None
    for name in names:
        file = tfrecord.RecordFile(os.path.join(directory, name))
        split = "eval" if name.startswith("eval") else "train"
        listed.setdefault(split, []).append({"name": name, "rows": len(file), "bytes": file.size})
        digest.update(os.fsencode(f"{name} {file.size} {len(file)}\n"))
        if len(file):
            digest.update(file[0] + file[len(file) - 1])
            shape = shape or _shape(file)
    length, predictions, is_labeled = shape or (1, 1, False)
    if vocab:
        tokenizer = tokenization.load(vocab)
        settings = tokenizer.settings() | {"file": files.absolute(vocab)}
        special_ids = dict(tokenizer.special_ids)
    else:
        settings, special_ids = {"size": _ANY_ID, "digest": ""}, {}
    return {
        "schema": SCHEMA,
        "max_seq_length": length,
        "max_sequences_per_row": 1,
        "max_predictions_per_seq": predictions,
        "nsp": "next" if is_labeled else "none",
        "vocabulary": settings,
        "special_ids": special_ids,
        "sources": [],
        "fingerprint": digest.hexdigest(),
        "splits": {
            split: dict.fromkeys(("documents", "tokens", "random_next"), 0)  # they are not known
            | dict.fromkeys(("rows", "sequences"), sum(file["rows"] for file in entries))
            | {"files": entries}
            for split, entries in listed.items()
        },
    }


def _shape(file: tfrecord.RecordFile) -> tuple[int, int, bool]:
    """Returns (L, P, whether there is a next-sentence label) of the first record of a file."""
    try:
        row = tf_example.decode(file[0])
        for name in (*_BY_TOKEN, *_BY_PREDICTION, _WEIGHTS):
            if not _numbers(row, name):
                raise ValueError(f"no feature {name!r}")
    except ValueError as error:
        reason = f"not a row of the {SCHEMA} schema ({error})"
        raise tfrecord.CorruptRecordError(file.path, 0, reason) from error
    return len(_numbers(row, "input_ids")), len(_numbers(row, _WEIGHTS)), LABELS in row
