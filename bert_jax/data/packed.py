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
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data import tf_example, tfrecord
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

    Args:
        lengths: the number of tokens of each sequence, at most `capacity`.
        capacity: the maximum number of tokens in a row.
        most: the maximum number of sequences in a row.

    Returns:
        For each row, the indices of its sequences in `lengths`; each sequence is in exactly one row.
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
    return tf_example.encode_example(
        {
            "input_ids": b"".join(sequence.ids.tobytes() for sequence in sequences),
            "starts": np.array(list(starts), "<u2").tobytes(),
            "first_lengths": np.array([s.first_length for s in sequences], "<u2").tobytes(),
            "next_sentence_labels": np.array([s.next_sentence_label for s in sequences], "<i2").tobytes(),
        }
    )


class PackedDataset(Dataset):
    """Random access to the rows of one split; see `rows.Dataset`."""

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str, index_dir: str = ""):
        super().__init__(directories, split, index_dir)
        self._pad_id = int(self.manifest["special_ids"]["pad"])
        self._id_dtype = id_dtype(self.vocab_size)
        self._decode = tf_example.ExampleDecoder()

    def _features(self, indices: list[int]) -> Iterator[dict[str, bytes]]:
        for index, record in zip(indices, self.read(indices), strict=True):
            try:
                yield self._decode(record)
            except ValueError as error:
                reason = f"not a packed row ({error})"
                raise tfrecord.CorruptRecordError(*self.locate(index), reason) from error

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a batch of rows.

        Args:
            indices: int64 [B], rows in [0, len(self)); -1 gives a row of padding only.

        Returns:
            A dictionary of int32 arrays: `input_ids` [B, L], with the pad id after a row's tokens; `lengths`
            [B]; `starts` [B, S], L where there is no sequence; `first_lengths` [B, S], 0 where there is no
            sequence; `next_sentence_labels` [B, S], -1 where there is no sequence or it has no second
            sentence; `row_ids` [B], 0..B-1.

        Raises:
            CorruptRecordError: a CRC is wrong, or a row holds invalid values (ids outside the vocabulary,
                for example).
        """
        indices = np.asarray(indices, np.int64)
        empty = dict.fromkeys(("input_ids", *_PER_SEQUENCE), b"")
        features = self._features(indices[indices >= 0].tolist())
        rows = [next(features) if index >= 0 else empty for index in indices.tolist()]
        length, sequences = self.max_seq_length, self.max_sequences_per_row
        try:
            input_ids, lengths = _pad_rows(rows, "input_ids", self._id_dtype, length, self._pad_id)
            (starts, counts), (first_lengths, first_counts), (labels, label_counts) = (
                _pad_rows(rows, name, dtype, sequences, fill)
                for (name, dtype), fill in zip(_PER_SEQUENCE.items(), (length, 0, -1), strict=True)
            )
            valid = (
                (counts == first_counts)
                & (counts == label_counts)
                & ((counts > 0) == (indices >= 0))
                & (input_ids.max(axis=1, initial=0) < self.vocab_size)
                & _valid_sequences(lengths, starts, first_lengths, labels)
            )
        except (KeyError, ValueError):
            valid = np.zeros(len(indices), bool)
        if not valid.all():
            self.raise_first_fault(indices)
        return {
            "input_ids": input_ids,
            "lengths": lengths,
            "starts": starts,
            "first_lengths": first_lengths,
            "next_sentence_labels": labels,
            "row_ids": np.arange(len(indices), dtype=np.int32),
        }

    def row_fault(self, index: int) -> str | None:
        """Returns the error in a row whose CRCs are right, or None if it is valid."""
        row = next(self._features([index]))
        try:
            ids, lengths = _pad_rows([row], "input_ids", self._id_dtype, self.max_seq_length, 0)
            columns = [
                _pad_rows([row], name, dtype, self.max_sequences_per_row, 0)
                for name, dtype in _PER_SEQUENCE.items()
            ]
        except KeyError as error:
            return f"the row has no feature {error.args[0]!r}"
        except ValueError as error:
            return (
                f"{error} is not a whole number of integers, or longer than the manifest says, "
                f"{self.max_seq_length} tokens in {self.max_sequences_per_row} sequences"
            )
        if int(ids.max()) >= self.vocab_size:
            return f"the token id {int(ids.max())} is outside the vocabulary of {self.vocab_size}"
        counts = {int(count[0]) for _, count in columns}
        number = min(counts)
        values = (value[:, :number] for value, _ in columns)
        if len(counts) > 1 or not number or not lengths[0] or not _valid_sequences(lengths, *values).all():
            return "the starts, first lengths or labels of its sequences do not fit the row"
        return None


def _pad_rows(
    rows: list[dict[str, bytes]], name: str, dtype: np.dtype, width: int, fill: int
) -> tuple[np.ndarray, np.ndarray]:
    """Pads one feature of all rows to `width` values.

    Returns:
        The values, int32 [B, width], and the number of values of each row, int32 [B].

    Raises:
        KeyError: a row lacks the feature.
        ValueError: a row has more than `width` values, or not a whole number of integers.
    """
    values = [row[name] for row in rows]
    sizes = np.array([len(value) for value in values], np.int32)
    counts = sizes // dtype.itemsize
    if np.any(sizes % dtype.itemsize) or np.any(counts > width):
        raise ValueError(name)
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
