"""Reads and writes TFRecord files, with random access and without TensorFlow.

A record is `uint64 length, uint32 masked CRC32C of the length, the bytes, uint32 masked CRC32C of the bytes`,
all little-endian (tensorflow/core/lib/io/record_writer.h). The index file `NAME.tfrecord.index` next to
`NAME.tfrecord` holds the offset of each record as a little-endian uint64. The index is redundant: when it is
missing, a scan of the records rebuilds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import weakref
from collections.abc import Iterable, Iterator, Sequence

import google_crc32c
import numpy as np

from bert_jax.errors import UserError, file_error, reading
from bert_jax.io import atomic, files, remote, scratch

INDEX_SUFFIX = ".index"
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_GUESS = 4096  # bytes, more than most records have
INDEX_BLOCK = 4096  # records whose offsets are read together from a remote index: 32 KB
FRAME_BYTES = _HEADER.size + _CRC.size

_crc32c = google_crc32c.value


class CorruptRecordError(UserError):
    """Raised when the bytes of the record at byte `offset` of a file are not what was written."""

    def __init__(self, path: str, offset: int, reason: str):
        super().__init__(path, offset, reason)
        self.path, self.offset, self.reason = path, offset, reason

    def __str__(self) -> str:
        return f"corrupt record in {self.path} at byte {self.offset}: {self.reason}"


def masked_crc32c(data: bytes) -> int:
    """Returns the CRC32C of `data` as TFRecord stores it: rotated, plus a constant."""
    crc = _crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns the bytes of one record that holds `payload`."""
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
    """Random access to the records of one file; every read checks both CRCs.

    The index of the file is used if it fits; otherwise a scan rebuilds it and saves it next to the file, or
    in a cache. The file is not memory-mapped: reading a page of a mapping after the file was truncated raises
    SIGBUS.

    Raises:
        UserError: the file does not exist or is not readable.
        StorageError: the disk failed.
        CorruptRecordError: the file is truncated, or is not a TFRecord file.
    """

    def __init__(self, path: str):
        self.path = path
        with reading(path), files.local_copy(path) as local:
            self._descriptor = os.open(local, os.O_RDONLY)
            self.size = os.fstat(self._descriptor).st_size
        weakref.finalize(self, os.close, self._descriptor)
        self.offsets = self._load_index()

    def _load_index(self) -> np.ndarray:
        if (offsets := self._read_index(self.path)) is not None:
            return offsets
        digest = hashlib.blake2b(os.fsencode(files.absolute(self.path)), digest_size=16).hexdigest()
        cached = os.path.join(scratch.cache_directory("indices"), digest)
        if (offsets := self._read_index(cached)) is not None:
            return offsets
        offsets = np.fromiter(self._scan(), np.int64)
        for path in (self.path, cached):
            with contextlib.suppress(OSError):
                files.make_directory(files.parent(path))
                write_index(path, offsets)
                break
        return offsets

    def _read_index(self, path: str) -> np.ndarray | None:
        """Returns the index at a path, int64 [n], or None if it is missing or does not fit the file."""
        try:
            content = np.frombuffer(files.read(path + INDEX_SUFFIX), "<u8").astype(np.int64)
        except (OSError, ValueError):
            return None
        if not len(content) or content[0] or not self._fits(content):
            return content if not len(content) and not self.size else None
        last = int(content[-1])
        length = int.from_bytes(self._read(last, 8), "little")
        return content if last + FRAME_BYTES + length == self.size else None

    def _fits(self, offsets: np.ndarray) -> bool:
        """Returns whether consecutive offsets, int64 [n], can be record boundaries of the file."""
        return bool(np.all(np.diff(offsets, prepend=-FRAME_BYTES, append=self.size) >= FRAME_BYTES))

    def _scan(self) -> Iterator[int]:
        """Yields the offset of each record; it checks the CRC of the length only."""
        offset = 0
        while offset < self.size:
            yield offset
            length = self._length(offset, self._read(offset, min(_HEADER.size, self.size - offset)))
            offset += FRAME_BYTES + length

    def _read(self, offset: int, size: int) -> bytes:
        """Returns bytes of the file. Raises CorruptRecordError if it has become shorter."""
        with reading(self.path):
            content = os.pread(self._descriptor, size, offset)
        if len(content) < size:
            raise CorruptRecordError(self.path, offset, f"the file ends here (it had {self.size} bytes)")
        return content

    def _length(self, offset: int, content: bytes) -> int:
        """Returns the payload length of the record at byte `offset`; `content` is the start of the record."""
        length, room = 0, self.size - offset - FRAME_BYTES
        if room >= 0:
            length, crc = _HEADER.unpack_from(content)
            if crc != masked_crc32c(content[:8]):
                raise CorruptRecordError(self.path, offset, "the CRC of the length is wrong")
        if length > room:
            raise CorruptRecordError(
                self.path, offset, f"the file ends inside the record ({self.size} bytes in all)"
            )
        return length

    def read_at(self, offset: int, content: bytes = b"") -> bytes:
        """Returns the payload of the record at byte `offset`; it checks both CRCs.

        `content` are the bytes from there on, at least a frame, if some have been read.
        """
        content = content or self._read(offset, min(_GUESS, self.size - offset))
        end = self._length(offset, content) + _HEADER.size
        if end + _CRC.size > len(content):
            content = self._read(offset, end + _CRC.size)
        payload = content[_HEADER.size : end]
        (crc,) = _CRC.unpack_from(content, end)
        if crc != masked_crc32c(payload):
            raise CorruptRecordError(self.path, offset, "the CRC of the data is wrong")
        return payload

    def digest(self) -> int:
        """Returns the CRC-32C of the whole file."""
        crc = 0
        for start in range(0, self.size, 1 << 24):
            crc = google_crc32c.extend(crc, self._read(start, min(1 << 24, self.size - start)))
        return crc

    def __len__(self) -> int:
        return len(self.offsets)

    def span(self, number: int) -> tuple[int, int]:
        """Returns the offsets at which a record begins and ends."""
        start, end, *_ = *self._two_offsets(number), self.size
        return start, end

    def _two_offsets(self, number: int) -> list[int]:
        """Returns the offset of a record and of the next one, if there is a next one."""
        return self.offsets[number : number + 2].tolist()

    def __getitem__(self, index: int) -> bytes:
        return self.read_at(int(self.offsets[index]))

    def __iter__(self) -> Iterator[bytes]:
        return map(self.read_at, self.offsets.tolist())


class RemoteFile(RecordFile):
    """A record file in an object store, whose records are read by `fetch`.

    Blocks of its index are copied to the local disk when one of their records is first read. Copying all
    indices of a large corpus at the start (0.4% of its bytes, on each host) would delay the first step.

    `copy` is the path that a local copy would have. The local index is next to it; a block that it lacks is
    zeros or beyond its end.
    """

    def __init__(self, url: str, copy: str, size: int, rows: int):
        self.path, self.size, self._index, self._rows = url, size, copy + INDEX_SUFFIX, rows

    def __len__(self) -> int:
        return self._rows

    def _two_offsets(self, number: int) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return np.fromfile(self._index, "<i8", 2, offset=8 * number).tolist()
        return []

    def knows(self, number: int) -> bool:
        """Returns whether the local copy of the index contains the span of a record."""
        edges = [*self._two_offsets(number), *[self.size] * (number + 1 == self._rows)]
        return len(edges) == 2 and edges[1] - edges[0] >= FRAME_BYTES and (edges[0] > 0 or not number)

    def block(self, number: int) -> tuple[str, int, int]:
        """Returns the range of the index that has the span of a record, (URL, start, end)."""
        first = number - number % INDEX_BLOCK
        return self.path + INDEX_SUFFIX, 8 * first, 8 * min(first + INDEX_BLOCK + 1, self._rows)

    def keep_block(self, start: int, content: bytes) -> None:
        """Checks bytes of the index, which start at byte `start`, and writes them to the local index."""
        if not self._fits(np.frombuffer(content, "<i8")):
            raise CorruptRecordError(self.path + INDEX_SUFFIX, start, "it is not the index of these records")
        with os.fdopen(os.open(self._index, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.seek(start)
            file.write(content)

    def _read(self, offset: int, size: int) -> bytes:
        return _read_ranges([(self.path, offset, offset + size)])[0]


def fetch(records: Iterable[tuple[RecordFile, int]]) -> dict[tuple[str, int], bytes]:
    """Returns {(path, offset): frame} of the records, (file, number), that are in object stores.

    All are requested at the same time; neighbors are one request. No CRC is checked.
    """
    remote_records = [(file, number) for file, number in records if isinstance(file, RemoteFile)]
    blocks = {file.block(number): file for file, number in remote_records if not file.knows(number)}
    for block, content in zip(blocks, _read_ranges(list(blocks)), strict=True):
        blocks[block].keep_block(block[1], content)
    spans = sorted({(file.path, *file.span(number)) for file, number in remote_records})
    groups: list[list[tuple[str, int, int]]] = []  # of neighbors
    for span in spans:
        if groups and groups[-1][-1][::2] == span[:2]:
            groups[-1].append(span)
        else:
            groups.append([span])
    contents = _read_ranges([(group[0][0], group[0][1], group[-1][2]) for group in groups])
    return {
        (path, start): content[start - group[0][1] : end - group[0][1]]
        for group, content in zip(groups, contents, strict=True)
        for path, start, end in group
    }


def _read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    try:
        contents = remote.read_ranges(ranges)
    except OSError as error:
        raise file_error(f"{error.filename}: cannot be read ({error.strerror})", error) from error
    for (path, start, end), content in zip(ranges, contents, strict=True):
        if len(content) < end - start:
            raise CorruptRecordError(path, start, f"the file ends here at byte {start + len(content)}")
    return contents
