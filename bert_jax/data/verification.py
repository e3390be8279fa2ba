"""Checks once per file and machine that record files are those for which their manifest was written.

The checksums in a record file detect damaged records. They do not detect a valid record in the place of
another, or records in another order. The CRC-32C of the whole file, which is in the manifest, detects both.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

import google_crc32c

from bert_jax.data import tfrecord
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch

_CHUNK = 1 << 24


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
    A file with damaged records passes: these are detected when they are read.

    Args:
        file: the open record file.
        expected: the CRC-32C of the file in the manifest.

    Raises:
        UserError: every record is valid but the checksum differs: records were replaced or reordered.
    """
    state, memory = _state(file.path, expected), ""
    with contextlib.suppress(OSError, UserError):  # without a cache, files are checked each time
        name = hashlib.blake2b(os.fsencode(os.path.abspath(file.path)), digest_size=16).hexdigest()
        memory = os.path.join(scratch.cache_directory("verified"), name)
        if state and os.path.exists(memory) and files.read(memory) == state:
            return
    crc = file.digest()
    if crc == expected:
        if memory and state:
            with contextlib.suppress(OSError, UserError):
                files.make_directory(os.path.dirname(memory))
                atomic.write_file(memory, state)
        return
    try:
        for _ in file:
            pass
    except tfrecord.CorruptRecordError:
        return
    raise UserError(
        f"{file.path} is not the file that `bert-jax data` wrote: its records are valid, but some were "
        f"replaced or reordered (its CRC-32C is {crc:08x}, and {expected:08x} in the manifest); copy it again"
    )


def _state(path: str, crc: int) -> bytes:
    """Returns bytes that change when a file changes, or b"" if it has no local status, as a URL."""
    try:
        status = os.stat(path)
    except OSError:
        return b""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {crc:08x}\n".encode()
