"""TFRecord files with random access, and tf.train.Example messages of bytes features, without TensorFlow.

A record is `uint64 length, uint32 masked CRC32C of the length, the bytes, uint32 masked CRC32C of the bytes`,
all little-endian (tensorflow/core/lib/io/record_writer.h). Beside `NAME.tfrecord` stands
`NAME.tfrecord.index`: the offset of each record as a little-endian uint64. The index is redundant: it is
rebuilt by a scan when it is missing.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping

import google_crc32c
import numpy as np

from bert_jax.data import atomic
from bert_jax.errors import UserError

INDEX_SUFFIX = ".index"
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
FRAME_BYTES = _HEADER.size + _CRC.size

_crc32c = google_crc32c.value


class CorruptRecordError(UserError):
    """A record whose bytes are not what was written: the file, the record's offset, and what is wrong."""

    def __init__(self, path: str, offset: int, reason: str):
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
        return (
            f"corrupt record in {self.path} at byte {self.offset}: {self.reason}; "
            "copy the file again from its source, or make the records anew"
        )


def masked_crc32c(data: bytes) -> int:
    """CRC32C of `data` as TFRecord stores it: rotated, plus a constant."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """The bytes of one record that holds `payload`."""
    length = len(payload).to_bytes(8, "little")
    return b"".join((length, _CRC.pack(masked_crc32c(length)), payload, _CRC.pack(masked_crc32c(payload))))


def write_records(path: str, payloads: Iterable[bytes]) -> tuple[int, int]:
    """Writes `path` and its index atomically, the index first; returns (records, bytes)."""
    with atomic.replace_file(path) as file:
        offsets, position = [], 0
        for payload in payloads:
            offsets.append(position)
            position += file.write(frame(payload))
        write_index(path, np.array(offsets, np.int64))
    return len(offsets), position


def write_index(path: str, offsets: np.ndarray) -> None:
    """Writes the index of the record file `path`: the offset of each record, int [n]."""
    atomic.write_file(path + INDEX_SUFFIX, np.ascontiguousarray(offsets, "<u8").tobytes())


class RecordFile:
    """Random access to the records of one memory-mapped file; every read checks both CRCs.

    Args:
        path: the `.tfrecord` file. Its index is read if it fits the file, else rebuilt by a scan and, where
            the folder can be written, kept.
    Raises:
        UserError: no such file, or not readable. CorruptRecordError: truncated, or not a TFRecord file.
    """

    def __init__(self, path: str):
        self.path = path
        self._bytes: mmap.mmap | bytes = b""
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                if self.size:
                    self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise UserError(f"cannot read the records {path}: {error.strerror}") from error
        offsets = self._read_index()
        self.index_rebuilt = offsets is None
        if offsets is None:
            offsets = np.fromiter((offset for offset, _ in self._scan_headers()), np.int64)
            with contextlib.suppress(OSError):
                write_index(path, offsets)
        self.offsets = offsets

    def _read_index(self) -> np.ndarray | None:
        """The index, int64 [n], or None if it is missing or belongs to other bytes."""
        try:
            content = np.fromfile(self.path + INDEX_SUFFIX, "<u8").astype(np.int64)
        except OSError:
            return None
        if not len(content):
            return content if not self.size else None
        last = int(content[-1])
        if (
            content[0] != 0
            or last < 0
            or last + FRAME_BYTES > self.size
            or bool(np.any(np.diff(content) < FRAME_BYTES))
        ):
            return None
        length = int.from_bytes(self._bytes[last : last + 8], "little")
        return content if last + FRAME_BYTES + length == self.size else None

    def _scan_headers(self) -> Iterator[tuple[int, int]]:
        """Yields (offset, payload length) of each record; only the lengths' CRCs are checked."""
        offset = 0
        while offset < self.size:
            length = self._length(offset)
            yield offset, length
            offset += FRAME_BYTES + length

    def _length(self, offset: int) -> int:
        if offset + FRAME_BYTES > self.size:
            raise CorruptRecordError(
                self.path, offset, f"the file ends inside the record ({self.size} bytes in all)"
            )
        length, crc = _HEADER.unpack_from(self._bytes, offset)
        if crc != masked_crc32c(self._bytes[offset : offset + 8]):
            raise CorruptRecordError(self.path, offset, "the CRC of the length is wrong")
        if offset + FRAME_BYTES + length > self.size:
            raise CorruptRecordError(
                self.path, offset, f"the file ends inside the record ({self.size} bytes in all)"
            )
        return length

    def read_at(self, offset: int) -> bytes:
        """The payload of the record at byte `offset`, both CRCs checked."""
        length = self._length(offset)
        start = offset + _HEADER.size
        payload = self._bytes[start : start + length]
        (crc,) = _CRC.unpack_from(self._bytes, start + length)
        if crc != masked_crc32c(payload):
            raise CorruptRecordError(self.path, offset, "the CRC of the data is wrong")
        return payload

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, index: int) -> bytes:
        return self.read_at(int(self.offsets[index]))

    def __iter__(self) -> Iterator[bytes]:
        return map(self.read_at, self.offsets.tolist())


def encode_example(features: Mapping[str, bytes]) -> bytes:
    """A serialised tf.train.Example with one bytes value a feature, in the order of the names."""
    names = sorted(features)
    values = [features[name] for name in names]
    headers = _headers(tuple(names), tuple(map(len, values)))
    return b"".join(itertools.chain.from_iterable(zip(headers, values, strict=True)))


@functools.lru_cache(maxsize=1 << 14)
def _headers(names: tuple[str, ...], lengths: tuple[int, ...]) -> tuple[bytes, ...]:
    """What stands before each value in an Example; it depends on the lengths alone, and few occur."""
    entries, total = [], 0
    for name, length in zip(names, lengths, strict=True):
        value = b"\x0a" + _varint(length)
        bytes_list = b"\x0a" + _varint(len(value) + length) + value
        feature = b"\x12" + _varint(len(bytes_list) + length) + bytes_list
        entry = b"\x0a" + _varint(len(name.encode())) + name.encode() + feature
        entries.append(b"\x0a" + _varint(len(entry) + length) + entry)
        total += len(entries[-1]) + length
    return (b"\x0a" + _varint(total) + entries[0], *entries[1:]) if entries else ()


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class ExampleDecoder:
    """Reads the bytes features of serialised tf.train.Examples, whoever wrote them.

    Where the values lie follows from the bytes between them. Messages of one layout differ in the values
    alone, so a layout is parsed once and then only compared: some ten times faster than parsing each message.
    """

    _MAX_LAYOUTS = 1 << 14

    def __init__(self) -> None:
        self._layouts: dict[
            bytes, tuple[tuple[str, ...], tuple[slice, ...], tuple[tuple[slice, bytes], ...]]
        ] = {}

    def __call__(self, message: bytes) -> dict[str, bytes]:
        """Returns {name: first value}.

        Raises:
            ValueError: malformed, or a feature that is not a list of bytes (as in google-schema records).
        """
        layout = self._layouts.get(message[:16])
        if layout is not None:
            names, values, gaps = layout
            for gap, expected in gaps:
                if message[gap] != expected:
                    break
            else:
                return {name: message[value] for name, value in zip(names, values)}  # noqa: B905
        spans = parse_example(message)
        ordered = sorted(spans.items(), key=lambda item: item[1])
        edges = [0, *itertools.chain.from_iterable(span for _, span in ordered), None]
        gaps = tuple(
            (slice(start, end), message[start:end])
            for start, end in zip(edges[::2], edges[1::2], strict=True)
        )
        if len(self._layouts) >= self._MAX_LAYOUTS:
            self._layouts.clear()
        self._layouts[message[:16]] = (
            tuple(name for name, _ in ordered),
            tuple(slice(*s) for _, s in ordered),
            gaps,
        )
        return {name: message[start:end] for name, (start, end) in ordered}


def parse_example(message: bytes) -> dict[str, tuple[int, int]]:
    """Where the bytes features of a serialised tf.train.Example lie.

    Returns:
        {name: (start, end) of the first value}.

    Raises:
        ValueError: malformed, or a feature that is not a list of bytes.
    """
    spans = {}
    for example_field, start, end in _fields(message, 0, len(message)):
        if example_field != 1:
            continue
        for _, entry_start, entry_end in _fields(message, start, end):
            name, value = "", (entry_end, entry_end)
            for number, field_start, field_end in _fields(message, entry_start, entry_end):
                if number == 1:
                    name = message[field_start:field_end].decode(errors="replace")
                else:
                    value = field_start, field_end
            for kind in ("feature", "list"):
                first = next(_fields(message, *value), (1, value[1], value[1]))
                if first[0] != 1:
                    raise ValueError(f"{kind} {name!r} is not a list of bytes")
                value = first[1:]
            spans[name] = value
    return spans


def example_kinds(message: bytes) -> dict[str, str]:
    """What a serialised tf.train.Example holds: {feature: "bytes", "float" or "int64"}, "empty" for no list.

    Raises:
        ValueError: malformed.
    """
    kinds = {}
    for _, start, end in _fields(message, 0, len(message)):
        for _, entry_start, entry_end in _fields(message, start, end):
            parts = {
                number: (first, last) for number, first, last in _fields(message, entry_start, entry_end)
            }
            lists = [number for number, *_ in _fields(message, *parts.get(2, (0, 0)))]
            name = message[slice(*parts.get(1, (0, 0)))].decode(errors="replace")
            kinds[name] = {1: "bytes", 2: "float", 3: "int64"}.get(lists[0], "unknown") if lists else "empty"
    return kinds


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
