"""Locates and reads the rows of record directories, of any schema."""

from __future__ import annotations

import abc
import contextlib
import hashlib
import os
import resource
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.data import manifests, tf_example, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import atomic, files, scratch
from bert_jax.io.wording import counted

_OTHER_FILES = 512  # that a run may open in addition to its records


class Dataset(abc.ABC):
    """Random access to the rows of one split of one or more record directories, of any schema.

    The `directories` are (directory, manifest) pairs with the same vocabulary and shape; one without the
    split is skipped.

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

    def __init__(self, directories: Sequence[tuple[str, dict[str, Any]]], split: str):
        self.directory = directories[0][0]
        self._pad_id = 0
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
            else open_file(path, entry)
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
        """Returns the records of rows, whose CRCs are checked."""
        places = [self._place(index) for index in indices]
        if not self.is_remote:
            return [file[number] for file, number in places]
        frames = tfrecord.fetch(places)
        starts = [file.span(number)[0] for file, number in places]
        found = zip(places, starts, strict=True)
        return [file.read_at(start, frames.get((file.path, start), b"")) for (file, _), start in found]

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns a batch of rows.

        Args:
            indices: int64 [B], rows in [0, len(self)); -1 gives a row of padding only.

        Returns:
            A dictionary of int32 arrays: `input_ids` [B, L], with the pad id after a row's tokens; `lengths`
            [B]; `starts` [B, S], L where there is no sequence; `first_lengths` [B, S], 0 where there is no
            sequence; `next_sentence_labels` [B, S], -1 where there is no sequence or it has no second
            sentence; `row_ids` [B], 0..B-1. Rows of the google schema also have int32 `masked_positions`,
            int32 `masked_labels` and float32 `masked_weights`, all [B, P], 0 in unused slots.

        Raises:
            CorruptRecordError: a CRC is wrong, or a row holds invalid values (ids outside the vocabulary,
                for example).
        """
        indices = np.asarray(indices, np.int64)
        is_row = indices >= 0
        chosen = indices[is_row].tolist()
        try:
            arrays, faults = self._assemble(self._features(chosen))
        except ValueError:
            arrays, faults = {}, [self._fault(index) for index in chosen]
            assert any(faults)
        for index, fault in zip(chosen, faults, strict=True):
            if fault:
                raise tfrecord.CorruptRecordError(*self.locate(index), fault)
        if not is_row.all():
            fills = {"input_ids": self._pad_id, "starts": self.max_seq_length, "next_sentence_labels": -1}
            for name, values in arrays.items():
                fill = fills.get(name, 0)
                arrays[name] = np.full((len(indices), *values.shape[1:]), fill, values.dtype)
                arrays[name][is_row] = values
        return arrays | {"row_ids": np.arange(len(indices), dtype=np.int32)}

    def _fault(self, index: int) -> str:
        try:
            return self._assemble(self._features([index]))[1][0]
        except ValueError as error:
            return str(error)

    def _features(self, indices: list[int]) -> list[Mapping[str, Any]]:
        features = []
        for index, record in zip(indices, self.read(indices), strict=True):
            try:
                features.append(tf_example.decode(record))
            except ValueError as error:
                reason = f"not a row of the {self.manifest['schema']} schema ({error})"
                raise tfrecord.CorruptRecordError(*self.locate(index), reason) from error
        return features

    @abc.abstractmethod
    def _assemble(self, rows: list[Mapping[str, Any]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the arrays of rows, and the error in each row: object [B], "" for a valid row.

        Raises ValueError if a feature is missing, or has the wrong number of values.
        """


def _allow_open_files(count: int) -> None:
    """Raises this process's soft limit on open files if `count` record files need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(files.names("/dev/fd")) + count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than the one that it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def open_file(path: str, entry: dict[str, Any]) -> tfrecord.RecordFile:
    """Opens the record file of an entry of a manifest. Raises UserError if it is another file."""
    file = tfrecord.RecordFile(path)
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

    Raises:
        UserError: every record is valid but the checksum differs: records were replaced or reordered.
    """
    passed = ""
    if not files.is_remote(file.path):
        status = os.stat(file.path)
        state = f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {expected:08x}"
        state = f"{os.path.abspath(file.path)} {state}"
        name = hashlib.blake2b(os.fsencode(state), digest_size=16).hexdigest()
        passed = os.path.join(scratch.cache_directory("verified"), name)
        if os.path.exists(passed):
            return
    crc = file.digest()
    if crc == expected:
        if passed:
            with contextlib.suppress(OSError, UserError):  # without a cache, files are checked each time
                files.make_directory(os.path.dirname(passed))
                atomic.write_file(passed, b"")
        return
    try:
        for _ in file:
            pass
    except tfrecord.CorruptRecordError:
        return
    raise UserError(
        f"{file.path} is not the file in its manifest: its CRC-32C is {crc:08x}, expected {expected:08x}"
    )
