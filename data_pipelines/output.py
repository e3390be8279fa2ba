"""Locks and fills the output directory of a build, so that one process at a time writes to it."""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import IO, Any

import bert_jax
from bert_jax import tokenization
from bert_jax.data import manifests, tfrecord
from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from data_pipelines.settings import difference

UNFINISHED = "unfinished"  # the folder in the output directory from which an interrupted build resumes
SETTINGS = "settings.json"  # in that folder
_LOCK = "lock"  # in that folder
_FORM = "form 7"  # the format of the unfinished work; it changes with the files there


def finished(directory: str, settings: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
    """Returns the manifest of finished records with these settings, None if they have to be made.

    That is so if there are none, or if a file is missing or truncated. With `overwrite`, all files are read,
    and damaged records, and records with other settings (else a UserError), are made again. The old ones stay
    until `move_records`.
    """
    if not files.exists(os.path.join(directory, manifests.FILE)):
        return None
    manifest = manifests.read(directory)
    differing = difference(settings, manifest)
    if differing and not overwrite:
        raise UserError(f"--output={directory} holds other records ({differing}); --overwrite replaces them")
    if differing or not _has_vocabulary(directory, manifest["vocabulary"]):
        return None
    # A build that was started with --overwrite, to replace damaged records, resumes without the flag.
    begun = os.path.join(directory, UNFINISHED, SETTINGS)
    read = overwrite or (files.exists(begun) and not difference(settings, json.loads(files.read(begun))))
    listed = [file for split in manifest["splits"].values() for file in split["files"]]
    whole = all(_is_whole(os.path.join(directory, file["name"]), file, read) for file in listed)
    return manifest if whole else None


def _is_whole(path: str, file: Mapping[str, Any], read: bool) -> bool:
    if not files.exists(path) or files.size(path) != file["bytes"]:
        return False
    return not read or files.crc32c(path) == file["crc32c"]


def _has_vocabulary(directory: str, vocabulary: Mapping[str, Any]) -> bool:
    path = os.path.join(directory, vocabulary["file"])
    return files.exists(path) and hashlib.sha256(files.read(path)).hexdigest() == vocabulary["digest"]


@contextlib.contextmanager
def claimed(directory: str, settings: dict[str, Any], overwrite: bool = False) -> Iterator[str]:
    """Creates and locks the folder for unfinished work in the output directory, and yields its path.

    With `overwrite`, unfinished work with other settings, and another vocabulary, are replaced.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    begun_with = settings | {"made_by": f"bert-jax {bert_jax.__version__}, {_FORM}"}
    path = os.path.join(unfinished, SETTINGS)
    if not (files.exists(path) or files.exists(os.path.join(directory, manifests.FILE))):
        _check_stray(directory, settings, overwrite)
    files.make_directory(unfinished)
    # Object stores have no locks.
    lock = None if files.is_remote(directory) else open(os.path.join(unfinished, _LOCK), "w")  # noqa: SIM115
    with lock or contextlib.nullcontext():
        if not _take(lock):
            raise UserError(f"--output={directory}: another `bert-jax data` is writing there")
        differing = difference(begun_with, json.loads(files.read(path))) if files.exists(path) else ""
        if differing and not overwrite:
            raise UserError(
                f"--output={directory} has an unfinished run with other flags ({differing}); --overwrite "
                "replaces it"
            )
        if differing or not files.exists(path):
            _discard(directory)
            atomic.write_file(path, json.dumps(begun_with).encode())
        yield unfinished


def _check_stray(directory: str, settings: Mapping[str, Any], overwrite: bool) -> None:
    """Raises UserError for files in the directory that this build would replace and no build has written."""
    for name in files.names(directory):
        same = name == settings["vocabulary"]["file"] and _has_vocabulary(directory, settings["vocabulary"])
        if _is_of_records(name) and not same and (".tfrecord" in name or not overwrite):
            raise UserError(f"--output={directory} holds another {name}; expected an empty directory")


def _take(lock: IO[str] | None) -> bool:
    """Locks the unfinished work until the file is closed; returns False if another process has it."""
    if lock is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The file may have been deleted with the folder of a build that finished.
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    except (BlockingIOError, FileNotFoundError):
        return False


def _discard(directory: str) -> None:
    """Removes the unfinished work of another build, and the files that it moved to the output directory.

    The settings stay, and results of tasks are removed first, so that either build can resume if this one is
    killed. Results of documents precede results of rows, because making rows removes the documents.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    stale = [name for name in files.names(unfinished) if name not in (_LOCK, SETTINGS)]
    for name in sorted(stale, key=lambda name: (not name.endswith(".json"), name.startswith("rows"), name)):
        path = os.path.join(unfinished, name)
        (files.remove_tree if files.is_directory(path) else files.remove)(path)
    if not files.exists(os.path.join(directory, manifests.FILE)):
        for name in files.names(directory):
            if ".tfrecord" in name:
                files.remove(os.path.join(directory, name))


def _is_of_records(name: str) -> bool:
    kinds = [kind.file for kind in tokenization.KINDS.values()]
    return name.endswith((".tfrecord", f".tfrecord{tfrecord.INDEX_SUFFIX}")) or name in (
        manifests.FILE, *kinds,
    )  # fmt: skip


def move_records(directory: str, splits: Mapping[str, Any], vocabulary: str) -> None:
    """Moves record files from the unfinished work to the output directory, and removes older records there.

    Files that were moved before the build was killed are kept, and so is the file `vocabulary`. The checksum
    of each file is added to `splits`, which are the splits as the manifest stores them.
    """
    unfinished, moved = os.path.join(directory, UNFINISHED), []
    for split in splits.values():
        for file in split["files"]:
            made, done = (os.path.join(folder, file["name"]) for folder in (unfinished, directory))
            file["crc32c"] = files.crc32c(made if files.exists(made) else done)
            moved += [file["name"], file["name"] + tfrecord.INDEX_SUFFIX]
    # The manifest is removed first: without it, no one uses the other files.
    files.remove(os.path.join(directory, manifests.FILE), missing_ok=True)
    for name in files.names(directory):
        if _is_of_records(name) and name not in (*moved, vocabulary):
            files.remove(os.path.join(directory, name))
    for name in moved:
        if files.exists(os.path.join(unfinished, name)):
            files.move(os.path.join(unfinished, name), os.path.join(directory, name))
