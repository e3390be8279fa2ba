"""Checks once per file and machine that record files are those for which their manifest was written.

The checksums in a record file detect damaged records. They do not detect a valid record in the place of
another, or records in another order. The CRC-32C of the whole file, which is in the manifest, detects both.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import google_crc32c

from bert_jax.data import tfrecord
from bert_jax.errors import UserError
from bert_jax.io import caches, files, progress

_CHUNK = 1 << 24
_reported: set[str] = set()


def file_digest(path: str) -> int:
    """Returns the CRC-32C of a file's bytes."""
    crc = 0
    with files.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def check(file: tfrecord.RecordFile, expected: int) -> None:
    """Checks that an open record file has the CRC-32C that its manifest lists.

    A file that passed is not read again on this machine until its size, modification time or inode changes.
    A file with damaged records passes: these are detected and counted when they are read.

    Args:
        file: the open record file.
        expected: the CRC-32C of the file in the manifest.

    Raises:
        UserError: every record is valid but the checksum differs: records were replaced or reordered.
    """
    with _memory(file.path) as memory:
        state = _state(file.path, expected)
        if memory is not None and state and memory.read() == state:
            return
        found = file.digest()
        if found == expected:
            if memory is not None and state:
                _store(memory, state)
            return
    try:
        for _ in file:
            pass
    except tfrecord.CorruptRecordError:
        return
    raise UserError(
        f"{file.path} is not the file that `bert-jax data` wrote: its records are sound, but some were "
        f"replaced or reordered (its CRC-32C is {found:08x}, and {expected:08x} in the manifest); copy it "
        "again, or make the records anew"
    )


def report_unchecked(directories: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Reports, once per directory, a manifest without checksums, which an older version wrote.

    Args:
        directories: (path, manifest) of each record directory.
    """
    for directory, manifest in directories:
        entries = [entry for split in manifest["splits"].values() for entry in split["files"]]
        if directory not in _reported and any("crc32c" not in entry for entry in entries):
            _reported.add(directory)
            progress.log(
                f"{directory}: its manifest has no digests of the record files, as of an older version; "
                "replaced or reordered records would not be noticed"
            )


def _state(path: str, crc: int) -> bytes:
    """Returns bytes that change when a file changes, or b"" if it has no local status, as a URL."""
    try:
        found = os.stat(path)
    except OSError:
        return b""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino} {crc:08x}\n".encode()


def _store(memory: io.FileIO, state: bytes) -> None:
    """Replaces the stored state; a full disk keeps no state, and the file is checked again next time."""
    with contextlib.suppress(OSError):
        memory.truncate(0)
        memory.write(state)


@contextlib.contextmanager
def _memory(path: str) -> Iterator[io.FileIO | None]:
    """Opens and locks the file that stores the checked state of a record file.

    Because of the lock, one process reads the record file while the others wait. Yields None if there is no
    writable directory.
    """
    key = os.fsencode(os.path.abspath(path))
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    try:
        directory = caches.directory("verified")
        os.makedirs(directory, exist_ok=True)
        file = open(os.path.join(directory, name), "a+b", buffering=0)  # noqa: SIM115 (closed below)
    except (OSError, UserError):  # without a writable directory for caches, files are checked each time
        yield None
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file
    finally:
        with contextlib.suppress(OSError):  # network file systems report a full disk only here
            file.close()
