"""Whether record files are those that their manifest was written for, checked once per file and machine.

The checksums in a record file tell a damaged record. They do not tell a sound record in the place of another,
nor records in another order; the CRC-32C of the whole file, which the manifest holds, does.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import google_crc32c

from bert_jax.data import tfrecord
from bert_jax.errors import UserError
from bert_jax.io import files

_CHUNK = 1 << 24
_said: set[str] = set()


def file_digest(path: str) -> int:
    """Returns the CRC-32C of a file's bytes."""
    crc = 0
    with files.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def check(file: tfrecord.RecordFile, expected: int) -> None:
    """Raises UserError unless an open record file has the CRC-32C of its manifest.

    A file that was found to have it is not read again on this machine until its size, time of change or inode
    differ. A file with damaged records passes: they are found, and counted, where they are read.

    Args:
        file: The file.
        expected: Its CRC-32C in the manifest.

    Raises:
        UserError: Every record is sound, and the file is another one: records were replaced or reordered.
    """
    with _memory(file.path) as memory:
        state = _state(file.path, expected)
        if memory is not None and state and memory.read() == state:
            return
        found = file.digest()
        if found == expected:
            if memory is not None and state:
                memory.seek(0)
                memory.truncate()
                memory.write(state)
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


def report_unchecked(
    directories: Sequence[tuple[str, dict[str, Any]]], say: Callable[[str], None] | None = None
) -> None:
    """Says, once per directory, that a manifest has no digests because an older version wrote it.

    Args:
        directories: (path, manifest) of each.
        say: called with the line; None prints it to the standard error, since the standard output of a
            command may be read by a program.
    """
    say = say or functools.partial(print, file=sys.stderr, flush=True)
    for directory, manifest in directories:
        entries = [entry for split in manifest["splits"].values() for entry in split["files"]]
        if directory not in _said and any("crc32c" not in entry for entry in entries):
            _said.add(directory)
            say(
                f"{directory}: its manifest has no digests of the record files, as of an older version; "
                "replaced or reordered records would not be noticed"
            )


def default_directory() -> str:
    """Returns where it is kept which files were checked: in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "bert_jax", "verified")


def _state(path: str, crc: int) -> bytes:
    """What tells a file from another state of it; b"" for a URL."""
    try:
        found = os.stat(path)
    except OSError:
        return b""
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino} {crc:08x}\n".encode()


@contextlib.contextmanager
def _memory(path: str) -> Iterator[BinaryIO | None]:
    """The small file that remembers a record file, locked: one process reads, the others wait."""
    key = os.fsencode(os.path.abspath(path))
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    try:
        os.makedirs(default_directory(), exist_ok=True)
        file = open(os.path.join(default_directory(), name), "a+b")  # noqa: SIM115 (closed below)
    except OSError:  # no home directory that can be written: checked each time
        yield None
        return
    with file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file
