"""Writes rows of the `google` schema (see `google`), some thousand in one call of a compiled function."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from bert_jax.data import tfrecord
from bert_jax.data.compiling import compiled

# The features in the order of their names, as protocol buffers sort them, and their kinds.
_FEATURES = {
    "input_ids": tfrecord.INT64,
    "input_mask": tfrecord.INT64,
    "masked_lm_ids": tfrecord.INT64,
    "masked_lm_positions": tfrecord.INT64,
    "masked_lm_weights": tfrecord.FLOAT,
    "next_sentence_labels": tfrecord.INT64,
    "segment_ids": tfrecord.INT64,
}
_KINDS = np.array(list(_FEATURES.values()), np.int64)
_NAMES = np.frombuffer("".join(_FEATURES).encode(), np.uint8)
_NAME_EDGES = np.cumsum([0, *map(len, _FEATURES)])
_ONE = np.frombuffer(np.array(1, "<f4").tobytes(), np.uint8)
_BEFORE, _AFTER = tfrecord.FRAME_HEADER_BYTES, tfrecord.FRAME_BYTES - tfrecord.FRAME_HEADER_BYTES
_LONGEST_VARINT = 5  # of an int32


class Rows(NamedTuple):
    """N rows `[CLS] A [SEP] B [SEP]` with their masks, int32, all padded with zeros."""

    ids: np.ndarray  # [N, L], after masking
    lengths: np.ndarray  # [N], tokens
    first_lengths: np.ndarray  # [N], tokens of A with [CLS] and the first [SEP]
    positions: np.ndarray  # [N, P], what is to be predicted, in ascending order
    labels: np.ndarray  # [N, P]
    predictions: np.ndarray  # [N], how many
    next_sentence_labels: np.ndarray  # [N]


def encode(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The records of rows, one after the other with their frames.

    Returns:
        uint8 [bytes] and int64 [N + 1], where each record begins and the last one ends.
    """
    length, predictions = rows.ids.shape[1], rows.labels.shape[1]
    most = dict.fromkeys(("input_mask", "segment_ids"), length) | {
        "input_ids": _LONGEST_VARINT * length,
        "masked_lm_ids": _LONGEST_VARINT * predictions,
        "masked_lm_positions": _LONGEST_VARINT * predictions,
        "masked_lm_weights": 4 * predictions,
        "next_sentence_labels": 1,
    }
    longest = len(tfrecord.encode_example({name: bytes(size) for name, size in most.items()}, _FEATURES))
    buffer = np.zeros(len(rows.ids) * (longest + tfrecord.FRAME_BYTES), np.uint8)
    edges = np.zeros(len(rows.ids) + 1, np.int64)
    _encode(buffer, edges, *rows)
    buffer = buffer[: edges[-1]]
    tfrecord.fill_frames(buffer, edges)
    return buffer, edges


@numba.njit
def _varint_size(value):
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@numba.njit
def _write_varint(out, at, value):
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@numba.njit
def _varints_size(values):
    size = 0
    for value in values:
        size += _varint_size(value)
    return size


@numba.njit
def _write_varints(out, at, values):
    for value in values:
        at = _write_varint(out, at, value)
    return at


@numba.njit
def _with_length(size):
    """The bytes of a message's field of so many bytes: its tag, the length, and what it holds."""
    return 1 + _varint_size(size) + size


@numba.njit
def _entry_size(feature, size):
    """The bytes of a feature's entry in the map of an Example, whose numbers take `size` bytes."""
    name = _NAME_EDGES[feature + 1] - _NAME_EDGES[feature]
    return _with_length(name) + _with_length(_with_length(_with_length(size)))


@numba.njit
def _write_field(out, at, number, size):
    out[at] = number << 3 | 2
    return _write_varint(out, at + 1, size)


@numba.njit
def _write_entry(out, at, feature, size):
    """Writes all of an entry that stands before its numbers."""
    low, high = _NAME_EDGES[feature], _NAME_EDGES[feature + 1]
    at = _write_field(out, at, 1, _entry_size(feature, size))
    at = _write_field(out, at, 1, high - low)
    for i in range(low, high):
        out[at] = _NAMES[i]
        at += 1
    at = _write_field(out, at, 2, _with_length(_with_length(size)))
    at = _write_field(out, at, _KINDS[feature], _with_length(size))
    return _write_field(out, at, 1, size)


@compiled(
    "void(uint8[::1], int64[::1], int32[:,::1], int32[::1], int32[::1], int32[:,::1], int32[:,::1], "
    "int32[::1], int32[::1])"
)
def _encode(out, edges, ids, lengths, first_lengths, positions, labels, predictions, next_sentence_labels):
    """Writes into `out`, which is zero, leaving room for the frames."""
    length = ids.shape[1]
    sizes = np.empty(len(_KINDS), np.int64)
    for row in range(len(ids)):
        sizes[:] = (
            _varints_size(ids[row]),
            length,
            _varints_size(labels[row]),
            _varints_size(positions[row]),
            4 * labels.shape[1],
            1,
            length,
        )
        total = 0
        for feature in range(len(sizes)):
            total += _with_length(_entry_size(feature, sizes[feature]))
        at = _write_field(out, edges[row] + _BEFORE, 1, total)
        at = _write_varints(out, _write_entry(out, at, 0, sizes[0]), ids[row])
        at = _write_entry(out, at, 1, sizes[1])
        out[at : at + lengths[row]] = 1
        at = _write_varints(out, _write_entry(out, at + length, 2, sizes[2]), labels[row])
        at = _write_varints(out, _write_entry(out, at, 3, sizes[3]), positions[row])
        at = _write_entry(out, at, 4, sizes[4])
        for i in range(predictions[row]):
            out[at + 4 * i : at + 4 * i + 4] = _ONE
        at = _write_entry(out, at + sizes[4], 5, 1)
        out[at] = next_sentence_labels[row]
        at = _write_entry(out, at + 1, 6, length)
        out[at + first_lengths[row] : at + lengths[row]] = 1
        edges[row + 1] = at + length + _AFTER
