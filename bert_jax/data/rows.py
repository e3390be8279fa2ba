"""Locates and reads the rows of record directories, of any schema."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import resource
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.data import manifests, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch
from bert_jax.io.wording import counted

_OTHER_FILES = 512  # that a run may open in addition to its records


class Dataset(abc.ABC):
    """Random access to the rows of one split of one or more record directories, of any schema.

    Args:
        directories: (directory, manifest) pairs with the same vocabulary and shape.
        split: the name of the split; a directory without it is skipped.
        index_dir: see `tfrecord.RecordFile`.

    Attributes:
        directory: the first directory; the vocabulary in the manifest belongs to it.
        manifest: the manifest, merged from the manifests of several directories.
        split: the name of the split.
        is_remote: whether rows are read from an object store.
        max_seq_length: L.
        max_sequences_per_row: S.
        vocab_size: the number of tokens in the vocabulary.
        files: the open record files.

    Raises:
        UserError: a file differs from its manifest.
    """

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str, index_dir: str = ""):
        self.directory = directories[0][0]
        self.manifest = manifests.merge([manifest for _, manifest in directories])
        self.split = split
        self.max_seq_length = int(self.manifest["max_seq_length"])
        self.max_sequences_per_row = int(self.manifest["max_sequences_per_row"])
        self.vocab_size = int(self.manifest["vocabulary"]["size"])
        listed = [
            (os.path.join(directory, entry["name"]), manifest.get("url", ""), entry)
            for directory, manifest in directories
            for entry in manifest["splits"].get(split, {"files": []})["files"]
        ]
        self.is_remote = any(url for _, url, _ in listed)
        _allow_open_files(sum(not url for _, url, _ in listed))
        self.files = [
            tfrecord.RemoteFile(f"{url}/{entry['name']}", path, entry["bytes"], entry["rows"])
            if url
            else open_file(path, entry, index_dir)
            for path, url, entry in listed
        ]
        self._first_rows = np.cumsum([0] + [len(file) for file in self.files])

    def __len__(self) -> int:
        """Returns the number of rows."""
        return int(self._first_rows[-1])

    def _place(self, index: int) -> tuple[tfrecord.RecordFile, int]:
        """Returns the file of a row and the number of the row in it."""
        file = int(np.searchsorted(self._first_rows, index, side="right")) - 1
        return self.files[file], index - int(self._first_rows[file])

    def locate(self, index: int) -> tuple[str, int]:
        """Returns the path of a row's file and the byte offset of the row in it."""
        file, number = self._place(index)
        return file.path, file.span(number)[0]

    def read(self, indices: Iterable[int]) -> list[bytes]:
        """Returns the records of rows.

        Raises:
            CorruptRecordError: a CRC is wrong.
            UserError: a remote file does not exist.
            StorageError: a file cannot be read.
        """
        places = [self._place(index) for index in indices]
        if not self.is_remote:
            return [file[number] for file, number in places]
        frames = tfrecord.fetch(places)
        starts = [file.span(number)[0] for file, number in places]
        found = zip(places, starts, strict=True)
        return [file.read_at(start, frames.get((file.path, start), b"")) for (file, _), start in found]

    @abc.abstractmethod
    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a batch of rows; see `packed.PackedDataset.batch` and `google.GoogleDataset.batch`."""

    @abc.abstractmethod
    def row_fault(self, index: int) -> str | None:
        """Returns the error in a row whose CRCs are right, or None if it is valid."""

    def raise_first_fault(self, indices: np.ndarray) -> None:
        """Raises CorruptRecordError for the first invalid row, with the reason; -1 means no row."""
        for index in indices[indices >= 0].tolist():
            if reason := self.row_fault(index):
                raise tfrecord.CorruptRecordError(*self.locate(index), reason)


def _allow_open_files(count: int) -> None:
    """Raises this process's soft limit on open files if `count` record files need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(files.names("/dev/fd")) + count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than the one that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def open_file(path: str, entry: dict[str, Any], index_dir: str = "") -> tfrecord.RecordFile:
    """Opens a record file that a manifest lists.

    Args:
        path: the record file.
        entry: the manifest's entry for the file.
        index_dir: see `tfrecord.RecordFile`.

    Raises:
        UserError: the size, the number of rows or the CRC-32C is not the one in the manifest.
    """
    file = tfrecord.RecordFile(path, index_dir)
    if file.size != entry["bytes"] or len(file) != entry["rows"]:
        raise UserError(
            f"{path} has {counted(len(file), 'record')} in {counted(file.size, 'byte')}; its manifest has "
            f"{entry['rows']:,} in {entry['bytes']:,}"
        )
    if "crc32c" in entry:
        verify(file, entry["crc32c"])
    return file


def verify(file: tfrecord.RecordFile, expected: int) -> None:
    """Checks that an open record file has the CRC-32C that its manifest lists.

    A file that passed is not read again on this machine until its size, modification time or inode changes.
    A file with damaged records passes: these are detected when they are read.

    Args:
        file: the open record file.
        expected: the CRC-32C of the file in the manifest.

    Raises:
        UserError: every record is valid but the checksum differs: records were replaced or reordered.
    """
    memory, state = "", b""
    with contextlib.suppress(OSError, UserError):  # without a cache, files are checked each time
        status = os.stat(file.path)
        state = f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {expected:08x}\n".encode()
        name = hashlib.blake2b(os.fsencode(os.path.abspath(file.path)), digest_size=16).hexdigest()
        memory = os.path.join(scratch.cache_directory("verified"), name)
        if os.path.exists(memory) and files.read(memory) == state:
            return
    crc = file.digest()
    if crc == expected:
        if memory:
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
        f"{file.path} is not the file in its manifest: its CRC-32C is {crc:08x}, expected {expected:08x}"
    )
