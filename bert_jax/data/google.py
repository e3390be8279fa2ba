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
_BY_PREDICTION = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
KINDS = dict.fromkeys((*_BY_TOKEN, *_BY_PREDICTION, LABELS), tf_example.INT64) | {
    "masked_lm_weights": tf_example.FLOAT
}

_FILE_NAME = re.compile(r".+\.tf_?records?(-\d+-of-\d+)?")
_ANY_ID = 1 << 31


class GoogleDataset(Dataset):
    """Random access to the rows of one split; see `rows.Dataset`.

    Attributes:
        max_predictions: P, the maximum number of predicted tokens in a row.
    """

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str, index_dir: str = ""):
        super().__init__(directories, split, index_dir)
        self.max_predictions = int(self.manifest["max_predictions_per_seq"])

    def _decode(self, record: bytes) -> dict[str, bytes]:
        return features(record)

    def _assemble(self, rows: list[dict[str, bytes]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        length, most = self.max_seq_length, self.max_predictions
        ids, mask, segments = (_integers(rows, name, length) for name in _BY_TOKEN)
        positions, labels = (_integers(rows, name, most) for name in _BY_PREDICTION[:2])
        weights = _floats(rows, _BY_PREDICTION[2], most)
        nsp = np.full((len(rows), 1), -1)
        labeled = [place for place, row in enumerate(rows) if LABELS in row]
        if labeled:
            nsp[labeled] = _integers([rows[place] for place in labeled], LABELS, 1)

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


def features(message: bytes) -> dict[str, bytes]:
    """Returns the features of a record by their older names, as the stored bytes of their numbers.

    Raises:
        ValueError: a feature is missing or of another kind.
    """
    lists = tf_example.parse_lists(message)
    features = {}
    for name, kind in KINDS.items():
        found = name if name in lists else _NEWER_NAMES.get(name, name)
        if found in lists:
            stored, start, end = lists[found]
            if stored != kind:
                raise ValueError(f"{found} is not a list of {'float' if kind == 2 else 'int64'}")
            features[name] = message[start:end]
        elif name != LABELS:
            raise ValueError(f"no feature {name!r}")
    return features


def _integers(rows: list[dict[str, bytes]], name: str, width: int) -> np.ndarray:
    """Decodes the varints of one feature of all rows to int64 [B, width].

    Raises:
        ValueError: a row has another number of values.
    """
    values = [row[name] for row in rows]
    data = np.frombuffer(b"".join(values), np.uint8)
    ends = np.flatnonzero(data < 128)
    edges = np.cumsum([len(value) for value in values], dtype=np.int64)  # without rows, too
    if np.any(np.searchsorted(ends, edges) != width * np.arange(1, len(rows) + 1)) or np.any(
        data[edges - 1] > 127
    ):
        raise ValueError(f"{name} does not have {counted(width, 'value')}")
    if len(ends) == len(data):
        return data.reshape(len(rows), width).astype(np.int64)
    starts = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(len(data)) - np.repeat(starts, ends - starts + 1)
    if place.max() > 9:
        raise ValueError(f"{name} holds what is no int64")
    parts = (data & 127).astype(np.uint64) << (7 * place).astype(np.uint64)
    return np.add.reduceat(parts, starts).view(np.int64).reshape(len(rows), width)


def _floats(rows: list[dict[str, bytes]], name: str, width: int) -> np.ndarray:
    """Decodes one feature of all rows to float32 [B, width]; see `_integers`."""
    if any(len(row[name]) != 4 * width for row in rows):
        raise ValueError(f"{name} does not have {counted(width, 'value')}")
    return np.frombuffer(b"".join(row[name] for row in rows), "<f4").reshape(len(rows), width)


def is_record_file(path: str) -> bool:
    """Returns whether a path is named like a record file: NAME.tfrecord, NAME.tfrecord-00000-of-00010, ..."""
    return bool(_FILE_NAME.fullmatch(os.path.basename(path)))


def describe(directory: str, names: Sequence[str], vocab: str, index_dir: str = "") -> dict[str, Any]:
    """Returns a manifest for record files that have none.

    Files whose names start with "eval" form the split `eval`; all others form the split `train`. `vocab` is
    the vocabulary with which the records were made; "" if it is unknown, which accepts any id. For
    `index_dir`, see `tfrecord.RecordFile`.

    Raises:
        UserError: the rows do not follow this schema.
    """
    digest = hashlib.sha256()
    listed: dict[str, list[dict[str, Any]]] = {}
    shape = None
    for name in names:
        file = tfrecord.RecordFile(os.path.join(directory, name), index_dir)
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
        found = features(file[0])
    except ValueError as error:
        reason = f"not a row of the {SCHEMA} schema ({error})"
        raise tfrecord.CorruptRecordError(file.path, 0, reason) from error
    length = int(np.count_nonzero(np.frombuffer(found["input_ids"], np.uint8) < 128))
    return length, len(found["masked_lm_weights"]) // 4, LABELS in found
