"""Checks, locks and fills the output directory of a build, so that one process at a time writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from typing import IO, Any

import bert_jax
from bert_jax.data import manifests, tfrecord, verification
from bert_jax.errors import UserError, file_error
from bert_jax.io import atomic, files
from data_pipelines.cleaning import report
from data_pipelines.recorded_settings import difference

UNFINISHED = "unfinished"  # the folder in the output directory from which an interrupted build continues
SETTINGS = "settings.json"  # in it
_LOCK = "lock"  # in it
_FORM = "form 4"  # of the unfinished work; another one after a change of what it holds
_REPLACED = "replaced"  # in it: the manifest of records that are being removed


def finished(directory: str, settings: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
    """Returns the manifest of finished records with these settings.

    Args:
        directory: the output directory.
        settings: the settings of the build.
        overwrite: whether records with other settings are to be replaced, and damaged ones, for which all
            files are read. They are also read if a build with these settings was begun and not finished.

    Returns:
        The manifest, or None if the build has to make the records: there are none, a file of them is missing
        or truncated, the vocabulary is another one, or they have other settings or damaged records and are
        to be replaced. They stay until `move_records`.

    Raises:
        UserError: there are records with other settings, and `overwrite` is not set.
    """
    if not files.exists(os.path.join(directory, manifests.FILE)):
        return None
    manifest = manifests.read(directory)
    if _is_replaced(directory, manifest, settings, overwrite):
        return None
    if differing := difference(settings, manifest):
        raise UserError(
            f"{directory} holds other records ({differing}): --overwrite replaces them, or choose another "
            "--output"
        )
    # Unfinished work with other settings is that of a build that is to replace these records.
    if not _is_begun(directory) or _is_begun(directory, settings):
        _remove_left_over(directory)
    return manifest


def _is_begun(directory: str, settings: dict[str, Any] | None = None) -> bool:
    """Returns whether there is unfinished work with these settings; None for any settings."""
    path = os.path.join(directory, UNFINISHED, SETTINGS)
    return files.exists(path) and not (settings and difference(settings, json.loads(files.read(path))))


def _remove_left_over(directory: str) -> None:
    """Removes the unfinished work of a build that finished, unless another process has locked it."""
    unfinished = os.path.join(directory, UNFINISHED)
    if files.is_directory(unfinished):
        with contextlib.suppress(FileNotFoundError), _open_lock(directory) as lock:  # it may be gone by now
            if _take(lock):
                files.remove_tree(unfinished)


def _open_lock(directory: str) -> contextlib.AbstractContextManager[IO[str] | None]:
    """Returns the open lock file, or a context without one for a URL: object stores do not support locks."""
    if files.is_remote(directory):
        return contextlib.nullcontext()
    return open(os.path.join(directory, UNFINISHED, _LOCK), "w")


def _take(lock: IO[str] | None) -> bool:
    """Locks the unfinished work until the lock file is closed; returns False if another process has it."""
    if lock is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The lock file may have been deleted with the folder of a build that finished.
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except (BlockingIOError, FileNotFoundError):
        return False


def _is_replaced(directory: str, manifest: dict[str, Any], settings: dict[str, Any], overwrite: bool) -> bool:
    """Returns whether a build with these settings replaces the finished records of a directory."""
    if difference(settings, manifest):
        return overwrite
    if not _has_vocabulary(directory, manifest["vocabulary"]):
        return True
    listed = [file for split in manifest["splits"].values() for file in split["files"]]
    # A build that was begun with --overwrite, to replace damaged records, goes on without the flag.
    read = overwrite or _is_begun(directory, settings)
    return not all(_is_whole(os.path.join(directory, file["name"]), file, read) for file in listed)


def _is_whole(path: str, file: Mapping[str, Any], read: bool) -> bool:
    """Returns whether a record file has the size and, if it is to be read, the checksum of its manifest."""
    if not files.exists(path) or files.size(path) != file["bytes"]:
        return False
    # Manifests of older versions have no checksums.
    return not read or "crc32c" not in file or verification.file_digest(path) == file["crc32c"]


def move_records(directory: str, splits: Mapping[str, Any], vocabulary: str) -> None:
    """Moves record files from the unfinished work to the output directory, in place of those there.

    Those that were moved before the build was killed stay.

    Args:
        directory: the output directory.
        splits: the splits as the manifest stores them; each file is given its checksum.
        vocabulary: the name of the vocabulary, which stays, too.
    """
    unfinished, moved = os.path.join(directory, UNFINISHED), []
    for split in splits.values():
        for file in split["files"]:
            made, done = (os.path.join(folder, file["name"]) for folder in (unfinished, directory))
            file["crc32c"] = verification.file_digest(made if files.exists(made) else done)
            moved += [file["name"], file["name"] + tfrecord.INDEX_SUFFIX]
    _remove_replaced(directory, [*moved, vocabulary])
    for name in moved:
        if files.exists(os.path.join(unfinished, name)):
            files.move(os.path.join(unfinished, name), os.path.join(directory, name))


def _remove_replaced(directory: str, new: Collection[str]) -> None:
    """Removes the records that a build replaces, just before it moves its own there.

    The manifest goes first, since without it no one takes the rest for finished. It is moved to the
    unfinished work, so that a build that was killed meanwhile removes the rest when it goes on.

    Args:
        directory: the output directory.
        new: the names of the files that are moved there, or were before the build was killed.
    """
    manifest, moved = os.path.join(directory, manifests.FILE), os.path.join(directory, UNFINISHED, _REPLACED)
    if files.exists(manifest):
        files.move(manifest, moved)
    if files.exists(moved):
        old = json.loads(files.read(moved))
        names = [file["name"] for split in old["splits"].values() for file in split["files"]]
        indices = [name + tfrecord.INDEX_SUFFIX for name in names]
        for name in {old["vocabulary"]["file"], report.REPORT, *names, *indices}.difference(new):
            files.remove(os.path.join(directory, name), missing_ok=True)


def _discard(directory: str) -> None:
    """Removes the unfinished work of another run, and what it has moved into the output directory.

    The results of tasks go first, and the settings stay: if it is killed meanwhile, either run makes anew
    what is missing. Those of documents go before those of rows, since their runs are gone once rows are made.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    stale = [name for name in files.names(unfinished) if name not in (_LOCK, SETTINGS, _REPLACED)]
    for name in sorted(stale, key=lambda name: (not name.endswith(".json"), name.startswith("rows"), name)):
        path = os.path.join(unfinished, name)
        (files.remove_tree if files.is_directory(path) else files.remove)(path)
    if not files.exists(os.path.join(directory, manifests.FILE)):
        for name in files.names(directory):
            if ".tfrecord" in name or name == report.REPORT:
                files.remove(os.path.join(directory, name))


def _stray(directory: str, settings: Mapping[str, Any], overwrite: bool) -> str:
    """Returns the error message for files in the way that no build has written, or "" if there are none."""
    names = files.names(directory)
    if shards := [name for name in names if ".tfrecord" in name]:
        return f"{directory} holds {shards[0]} and no {manifests.FILE}: choose an empty --output"
    vocabulary = settings.get("vocabulary", {"file": ""})
    others = [name for name in names if name in (report.REPORT, vocabulary["file"])]
    others = [name for name in others if name == report.REPORT or not _has_vocabulary(directory, vocabulary)]
    if not others or overwrite:
        return ""
    return (
        f"{directory} holds another {others[0]} and no {manifests.FILE}: --overwrite replaces it, or choose "
        "another --output"
    )


def _has_vocabulary(directory: str, vocabulary: Mapping[str, Any]) -> bool:
    """Returns whether a directory holds the vocabulary that the settings of records describe."""
    path = os.path.join(directory, vocabulary["file"])
    return files.exists(path) and hashlib.sha256(files.read(path)).hexdigest() == vocabulary["digest"]


@contextlib.contextmanager
def claimed(directory: str, settings: dict[str, Any], overwrite: bool = False) -> Iterator[str]:
    """Creates and locks the folder for unfinished work in the output directory, and yields its path.

    Args:
        directory: the output directory, which is created if it is missing.
        settings: the settings of the build.
        overwrite: whether unfinished work with other settings is removed, and a vocabulary or a report of
            others replaced.

    Raises:
        UserError: the directory is not writable, another process writes to it or has just finished it, it
            holds files of others, or its unfinished work has other settings.
        StorageError: the disk or the bucket failed.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    begun_with = settings | {"made_by": f"bert-jax {bert_jax.__version__}, {_FORM}"}
    path = os.path.join(unfinished, SETTINGS)
    try:
        begun = files.is_directory(unfinished)
        files.make_directory(unfinished)
        opened = _open_lock(directory)
    except OSError as error:
        message = f"cannot write to --output={directory}: {error.strerror or error}"
        raise file_error(message, error) from error
    with opened as lock:
        if not _take(lock):
            raise UserError(f"another `bert-jax data` is writing to {directory}: wait for it, or stop it")
        old = files.exists(os.path.join(directory, manifests.FILE))
        if old and not _is_replaced(directory, manifests.read(directory), settings, overwrite):
            # They were finished since the call of `finished`.
            files.remove_tree(unfinished)
            raise UserError(f"another `bert-jax data` has just finished {directory}: run the command again")
        stray = "" if begun or old else _stray(directory, settings, overwrite)
        if stray:
            files.remove_tree(unfinished)
            raise UserError(stray)
        if lock:  # partial files of killed processes
            for name in files.names(unfinished):
                if atomic.final_name(name) != name:
                    files.remove(os.path.join(unfinished, name))
        differing = difference(begun_with, json.loads(files.read(path))) if files.exists(path) else ""
        if differing and not overwrite:
            raise UserError(
                f"{directory} holds the unfinished work of another run ({differing}): give the same flags to "
                "finish it, or --overwrite to begin anew"
            )
        if differing:
            _discard(directory)
        if differing or not files.exists(path):
            atomic.write_file(path, json.dumps(begun_with).encode())
        yield unfinished
