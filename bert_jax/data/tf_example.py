"""Encodes and decodes tf.train.Example messages, without TensorFlow.

A feature of an Example is a list of bytes values, of floats (float32, little-endian) or of int64 numbers
(varints). The numbers of a list are stored contiguously ("packed"), as TensorFlow writes them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

BYTES, FLOAT, INT64 = 1, 2, 3  # kinds of features: their field numbers in tf.train.Feature
_MOST_LAYOUTS = 1 << 14


def encode_example(features: Mapping[str, bytes], kinds: Mapping[str, int] | None = None) -> bytes:
    """Returns a serialized tf.train.Example, with its features sorted by name.

    Args:
        features: the value of each feature: one bytes value for a BYTES feature, the encoded bytes of all
            numbers for a FLOAT or INT64 feature.
        kinds: FLOAT or INT64 by feature name; features that are not listed are BYTES.
    """
    names = sorted(features)
    values = [features[name] for name in names]
    fields = tuple((kinds or {}).get(name, BYTES) for name in names)
    headers = _headers(tuple(names), tuple(map(len, values)), fields)
    return b"".join(itertools.chain.from_iterable(zip(headers, values, strict=True)))


@functools.lru_cache(_MOST_LAYOUTS)
def _headers(names: tuple[str, ...], lengths: tuple[int, ...], kinds: tuple[int, ...]) -> tuple[bytes, ...]:
    """Returns the bytes before each value in an Example.

    They depend on the names, kinds and lengths only, and few combinations occur, so they are cached.
    """
    entries, total = [], 0
    for name, length, kind in zip(names, lengths, kinds, strict=True):
        value = b"\x0a" + varint(length)
        values = bytes([kind << 3 | 2]) + varint(len(value) + length) + value
        feature = b"\x12" + varint(len(values) + length) + values
        entry = b"\x0a" + varint(len(name.encode())) + name.encode() + feature
        entries.append(b"\x0a" + varint(len(entry) + length) + entry)
        total += len(entries[-1]) + length
    return (b"\x0a" + varint(total) + entries[0], *entries[1:]) if entries else ()


def varint(value: int) -> bytes:
    """Returns the protocol-buffer varint of a non-negative integer: 7 bits per byte, lowest bits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ExampleDecoder:
    """Reads the bytes features of serialized tf.train.Examples, whichever library wrote them.

    The bytes between the values determine the positions of the values. Messages of one layout differ only in
    their values, so a layout is parsed once and later messages are only compared with it. This is about ten
    times faster than parsing each message.
    """

    def __init__(self) -> None:
        self._layouts: dict[
            bytes, tuple[tuple[str, ...], tuple[slice, ...], tuple[tuple[slice, bytes], ...]]
        ] = {}

    def __call__(self, message: bytes) -> dict[str, bytes]:
        """Returns {name: first value}.

        Raises:
            ValueError: the message is malformed, or a feature is not a list of bytes, as in google records.
        """
        layout = self._layouts.get(message[:16])
        if layout is not None:
            names, values, gaps = layout
            for gap, expected in gaps:
                if message[gap] != expected:
                    break
            else:
                return {name: message[value] for name, value in zip(names, values)}  # noqa: B905
        lists = parse_lists(message)
        for name, (kind, *_) in lists.items():
            if kind != BYTES:
                raise ValueError(f"feature {name!r} is not a list of bytes")
        spans = {name: (start, end) for name, (_, start, end) in lists.items()}
        ordered = sorted(spans.items(), key=lambda item: item[1])
        edges = [0, *itertools.chain.from_iterable(span for _, span in ordered), None]
        gaps = tuple(
            (slice(start, end), message[start:end])
            for start, end in zip(edges[::2], edges[1::2], strict=True)
        )
        if len(self._layouts) >= _MOST_LAYOUTS:
            self._layouts.clear()
        self._layouts[message[:16]] = (
            tuple(name for name, _ in ordered),
            tuple(slice(*s) for _, s in ordered),
            gaps,
        )
        return {name: message[start:end] for name, (start, end) in ordered}


def parse_lists(message: bytes) -> dict[str, tuple[int, int, int]]:
    """Returns the kinds and positions of the features in a serialized tf.train.Example.

    Returns:
        {name: (kind, start, end)}: the span of the first value of a list of bytes, or of all numbers of a
        list of another kind.

    Raises:
        ValueError: the message is malformed, or the numbers of a list are not packed.
    """
    spans = {}
    for field, start, end in _fields(message, 0, len(message)):
        for _, entry_start, entry_end in _fields(message, start, end) if field == 1 else ():
            entry = {number: span for number, *span in _fields(message, entry_start, entry_end)}
            name = message[slice(*entry.get(1, (0, 0)))].decode(errors="replace")
            start, end = entry.get(2, (entry_end, entry_end))
            kind, start, end = next(_fields(message, start, end), (BYTES, end, end))
            number, start, end = next(_fields(message, start, end), (1, end, end))
            if number != 1:
                raise ValueError(f"the list {name!r} has no values")
            spans[name] = kind, start, end
    return spans


def _fields(message: bytes, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields (number, start, end) of each length-delimited field of message[position:end]."""
    while position < end:
        tag, position = _read_varint(message, position, end)
        if tag & 7 != 2:
            raise ValueError(f"a field of wire type {tag & 7} where a length is expected")
        length, position = _read_varint(message, position, end)
        if position + length > end:
            raise ValueError("a field is longer than its message")
        yield tag >> 3, position, position + length
        position += length


def _read_varint(message: bytes, position: int, end: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 64, 7):
        if position >= end:
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a malformed length")
