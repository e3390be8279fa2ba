"""Serializes tf.train.Examples of numbers, thousands at a time, in a compiled function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bert_jax.data import tf_example, tfrecord
from bert_jax.data.google.numba_jit import compiled, helper

_LONGEST_VARINT = 5  # bytes of a non-negative int32


def encode(features: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the records of N Examples, concatenated, with their frames.

    The payload of each record is what `tf_example.encode_example` returns for the same numbers.

    Args:
        features: float32 or non-negative int32 [N, numbers], by name.

    Returns:
        The bytes, uint8 [bytes], and the offset at which each record begins and the last one ends, int64
        [N + 1].
    """
    names = sorted(features)
    values = [features[name] for name in names]
    kinds = [tf_example.FLOAT if value.dtype == np.float32 else tf_example.INT64 for value in values]
    numbers = np.concatenate([np.ascontiguousarray(value).view(np.int32) for value in values], axis=1)
    width = {tf_example.FLOAT: 4, tf_example.INT64: _LONGEST_VARINT}
    most = [bytes(width[kind] * value.shape[1]) for kind, value in zip(kinds, values, strict=True)]
    longest = tf_example.encode_example(dict(zip(names, most, strict=True)))
    buffer = np.empty(len(numbers) * (len(longest) + tfrecord.FRAME_BYTES), np.uint8)
    edges = np.zeros(len(numbers) + 1, np.int64)
    _encode(
        buffer,
        edges,
        numbers,
        np.cumsum([0, *(value.shape[1] for value in values)]),
        np.array(kinds),
        np.frombuffer("".join(names).encode(), np.uint8).copy(),
        np.cumsum([0, *(len(name.encode()) for name in names)]),
        tfrecord.FRAME_HEADER_BYTES,
        tfrecord.FRAME_BYTES - tfrecord.FRAME_HEADER_BYTES,
    )
    buffer = buffer[: edges[-1]]
    tfrecord.fill_frames(buffer, edges)
    return buffer, edges


@helper
def _varint_size(value):
    size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@helper
def _write_varint(out, at, value):
    while value > 0x7F:
        out[at] = value & 0x7F | 0x80
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@helper
def _field_size(size):
    """Returns the size of a field with `size` bytes of content: its tag, the length, and the content."""
    return 1 + _varint_size(size) + size


@helper
def _open_field(out, at, number, size):
    out[at] = number << 3 | 2
    return _write_varint(out, at + 1, size)


@compiled(
    "void(uint8[::1], int64[::1], int32[:,::1], int64[::1], int64[::1], uint8[::1], int64[::1], int64, int64)"
)
def _encode(out, edges, numbers, columns, kinds, names, name_edges, frame_header, frame_footer):
    """Writes each row of `numbers` into `out`, leaving room for the frames.

    Args:
        out: uint8 [bytes], the output buffer.
        edges: int64 [N + 1], filled with the offset at which each record begins and the last one ends.
        numbers: int32 [N, numbers]; those of a tf_example.FLOAT feature are the bits of float32 numbers.
        columns: the column at which each feature begins, and the one at which the last one ends.
        kinds: the kind of each feature.
        names: the concatenated names of the features, as UTF-8.
        name_edges: the offset in `names` at which each name begins, and the one at which the last one ends.
        frame_header: the size of the frame before a payload, in bytes.
        frame_footer: the size of the frame after a payload, in bytes.
    """
    features = len(kinds)
    # Sizes in bytes of an entry of the map, of its feature, of the list in it, and of the list's numbers.
    entries, bodies, lists, values = np.empty((4, features), np.int64)
    for row in range(len(numbers)):
        total = 0
        for i in range(features):
            values[i] = 0
            for column in range(columns[i], columns[i + 1]):
                values[i] += 4 if kinds[i] == tf_example.FLOAT else _varint_size(numbers[row, column])
            lists[i] = _field_size(values[i])
            bodies[i] = _field_size(lists[i])
            entries[i] = _field_size(name_edges[i + 1] - name_edges[i]) + _field_size(bodies[i])
            total += _field_size(entries[i])
        at = _open_field(out, edges[row] + frame_header, 1, total)
        for i in range(features):
            at = _open_field(out, at, 1, entries[i])
            at = _open_field(out, at, 1, name_edges[i + 1] - name_edges[i])
            for place in range(name_edges[i], name_edges[i + 1]):
                out[at] = names[place]
                at += 1
            at = _open_field(out, at, 2, bodies[i])
            at = _open_field(out, at, kinds[i], lists[i])
            at = _open_field(out, at, 1, values[i])
            for column in range(columns[i], columns[i + 1]):
                number = numbers[row, column]
                if kinds[i] == tf_example.FLOAT:
                    for shift in range(0, 32, 8):
                        out[at] = number >> shift & 0xFF
                        at += 1
                else:
                    at = _write_varint(out, at, number)
        edges[row + 1] = at + frame_footer
