"""Reads and writes the `packed` schema: rows of several unmasked sequences.

A row is a tf.train.Example of bytes features, each an array of little-endian uint16 numbers, except where
noted:
- `input_ids`: the tokens of its sequences, concatenated, with their [CLS] and [SEP]; uint32 if the vocabulary
  has more than 65,535 tokens.
- `starts`: the position in the row at which each sequence starts.
- `first_lengths`: the number of tokens of sentence A of each sequence, including [CLS] and the first [SEP].
- `next_sentence_labels` (int16): 1 if sentence B is random (or A and B are swapped), 0 if it follows A, -1 if
  there is no B.
Masks are not stored: they are sampled on the device.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data import tf_example
from bert_jax.data.rows import Dataset

SCHEMA = "packed"
_PER_SEQUENCE = {  # features and their dtypes
    "starts": np.dtype("<u2"),
    "first_lengths": np.dtype("<u2"),
    "next_sentence_labels": np.dtype("<i2"),
}


class PackedSequence(NamedTuple):
    """One sequence of a row: `[CLS] A [SEP] B [SEP]` or `[CLS] A [SEP]`."""

    ids: np.ndarray  # [n], of the dtype that `id_dtype` returns
    first_length: int  # number of tokens of A, including [CLS] and its [SEP]
    next_sentence_label: int  # 1: B is random, or A and B are swapped; 0: B follows A; -1: there is no B


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the dtype in which token ids are stored."""
    return np.dtype("<u2" if vocab_size <= 65_535 else "<u4")


def default_sequences_per_row(max_seq_length: int) -> int:
    """Returns the maximum number of sequences in a row, S; a higher limit would hardly fill rows further."""
    return 8 if max_seq_length < 256 else 16


def best_fit(lengths: Sequence[int], capacity: int, most: int) -> list[list[int]]:
    """Packs sequences into rows: each sequence, longest first, goes into the fullest row with enough room.

    A row has at most `capacity` tokens in `most` sequences. Returns the indices in `lengths` of the sequences
    of each row; each sequence is in exactly one row.
    """
    rows: list[list[int]] = []
    by_room: list[list[list[int]]] = [[] for _ in range(capacity + 1)]
    occupied = 0  # bit r is set if by_room[r] is not empty
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        size = lengths[place]
        fitting = occupied >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                occupied &= ~(1 << room)
        else:
            room, row = capacity, []
            rows.append(row)
        row.append(place)
        if len(row) < most and room > size:
            by_room[room - size].append(row)
            occupied |= 1 << (room - size)
    return rows


def encode_row(sequences: Sequence[PackedSequence]) -> bytes:
    """Returns the record of one row."""
    starts = itertools.accumulate((len(sequence.ids) for sequence in sequences[:-1]), initial=0)
    return tf_example.encode(
        {
            "input_ids": b"".join(sequence.ids.tobytes() for sequence in sequences),
            "starts": np.array(list(starts), "<u2").tobytes(),
            "first_lengths": np.array([s.first_length for s in sequences], "<u2").tobytes(),
            "next_sentence_labels": np.array([s.next_sentence_label for s in sequences], "<i2").tobytes(),
        }
    )


class PackedDataset(Dataset):
    """Random access to the rows of one split; see `rows.Dataset`."""

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str):
        super().__init__(directories, split)
        self._pad_id = int(self.manifest["special_ids"]["pad"])
        self._id_dtype = id_dtype(self.vocab_size)

    def _assemble(self, rows: list[Mapping[str, Any]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        length, sequences = self.max_seq_length, self.max_sequences_per_row
        input_ids, lengths = _pad_rows(rows, "input_ids", self._id_dtype, length, self._pad_id)
        (starts, counts), (first_lengths, first_counts), (labels, label_counts) = (
            _pad_rows(rows, name, dtype, sequences, fill)
            for (name, dtype), fill in zip(_PER_SEQUENCE.items(), (length, 0, -1), strict=True)
        )
        fits = (
            (counts == first_counts)
            & (counts == label_counts)
            & (counts > 0)
            & _valid_sequences(lengths, starts, first_lengths, labels)
        )
        faults = np.full(len(rows), "", object)
        faults[~fits] = "the starts, first lengths or labels of its sequences do not fit the row"
        largest = input_ids.max(axis=1, initial=0)
        for row in np.flatnonzero(largest >= self.vocab_size):
            faults[row] = f"the token id {largest[row]} is outside the vocabulary of {self.vocab_size}"
        return {
            "input_ids": input_ids,
            "lengths": lengths,
            "starts": starts,
            "first_lengths": first_lengths,
            "next_sentence_labels": labels,
        }, faults


def _pad_rows(
    rows: list[Mapping[str, Any]], name: str, dtype: np.dtype, width: int, fill: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns one feature of all rows, padded to int32 [B, width], and its number of values, int32 [B]."""
    if not all(row[name].bytes_list.value for row in rows):
        raise ValueError(f"the row has no feature {name!r}")
    values = [row[name].bytes_list.value[0] for row in rows]
    sizes = np.array([len(value) for value in values], np.int32)
    counts = sizes // dtype.itemsize
    if np.any(sizes % dtype.itemsize) or np.any(counts > width):
        raise ValueError(f"{name} is not a whole number of integers, or longer than the manifest says")
    padded = np.full((len(rows), width), fill, np.int32)
    padded[np.arange(width) < counts[:, None]] = np.frombuffer(b"".join(values), dtype)
    return padded, counts


def _valid_sequences(
    lengths: np.ndarray, starts: np.ndarray, first_lengths: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Returns whether the sequences of each row are consecutive and inside the row, bool [B].

    A first length of 0 marks an absent sequence.
    """
    present = first_lengths > 0
    ends = np.concatenate((starts[:, 1:], starts[:, :1] + lengths[:, None]), axis=1)
    ends = np.minimum(ends, lengths[:, None])  # the start of an absent sequence is L, past the tokens
    second_lengths = ends - starts - first_lengths
    alone = (labels == -1) & (second_lengths == 0)
    paired = (labels >= 0) & (labels <= 1) & (second_lengths > 0)
    absent = ~present & (labels == -1) & (starts >= lengths[:, None])
    return np.all(absent | (first_lengths >= 2) & (alone | paired), axis=1) & (
        (starts[:, 0] == 0) | ~present[:, 0]
    )
