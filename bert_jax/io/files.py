"""Reads, writes and lists files by path: a local path, or a URL that fsspec opens, such as gs:// or hf://.

Throughout the project a path is a `str` (or any object with `__fspath__`) and is used only through these
functions, so every command accepts a URL wherever it accepts a path. Paths are strings because `os.path.join`
and `os.path.basename` work on URLs, while `pathlib` and `etils.epath` turn a URL with a scheme they do not
know (for epath: all but gs, s3, az and hf) into the name of a local folder. The many kinds of errors of
fsspec are turned into OSErrors that contain the path.

Checkpoints are the exception: orbax and TensorStore write arrays with their own clients (see
`checks.check_checkpoint_place`). Libraries that open a local file by its name get one from `local_copy`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, BinaryIO

import google_crc32c
import numpy as np

from bert_jax.errors import UserError
from bert_jax.io import remote, scratch

PathLike = str | os.PathLike[str]

# A URL that went through pathlib or was mistyped has one slash; it would create a folder named `gs:`.
_ONE_SLASH = re.compile(r"(gs|gcs|s3|s3a|az|abfs|abfss|adl|hf|https?|s?ftp|hdfs|memory|file):/(?!/)")


def is_remote(path: PathLike) -> bool:
    """Returns whether a path is a URL. Raises UserError for a URL in which a slash is missing."""
    path = os.fspath(path)
    if match := _ONE_SLASH.match(path):
        raise UserError(f"{path}: expected two slashes after {match[1]}:")
    return "://" in path


def scheme(path: PathLike) -> str:
    """Returns the scheme of a URL, such as `gs` for gs://bucket/name; "" for a local path."""
    return os.fspath(path).partition("://")[0] if is_remote(path) else ""


def _strip(path: str) -> str:
    """Returns a path without trailing slashes; a root keeps its slashes."""
    stripped = path.rstrip("/")
    return path if not stripped or stripped.endswith(":") else stripped


def absolute(path: PathLike) -> str:
    """Returns the absolute path without a trailing slash; a URL only loses its trailing slash."""
    path = os.fspath(path)
    return _strip(path) if is_remote(path) else os.path.abspath(path)


def parent(path: PathLike) -> str:
    """Returns the directory that contains a path; for a URL, at least its scheme and its bucket or host."""
    path = absolute(path)
    if not is_remote(path):
        return os.path.dirname(path)
    head, _, rest = path.partition("://")
    return f"{head}://{rest.rpartition('/')[0] or rest}"


def name(path: PathLike) -> str:
    """Returns the last component of a path."""
    return os.path.basename(_strip(os.fspath(path)))


def suffix(path: PathLike) -> str:
    """Returns the suffix of a path's last component, in lower case and with its dot; "" if it has none."""
    return os.path.splitext(name(path))[1].lower()


def open_read(path: PathLike) -> BinaryIO:
    """Opens a file for reading and seeking. Raises UserError if fsspec has no such file system here."""
    if not is_remote(path):
        return open(path, "rb")
    return remote.open_read(os.fspath(path))


@contextlib.contextmanager
def local_copy(path: PathLike) -> Iterator[str]:
    """Yields the local path of a file or directory; for a URL, the path of a temporary copy."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    with scratch.directory() as folder:
        copy = os.path.join(folder, name(path))
        for each in walk(path) if is_directory(path) else [""]:
            source, target = (os.path.join(path, each), os.path.join(copy, each)) if each else (path, copy)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            download(source, target)
        yield copy


def download(path: PathLike, target: str) -> None:
    """Copies a remote file to a local path, whose content it replaces."""
    with remote.opened(path) as (system, bare):
        system.get_file(bare, target)


def load_array(path: PathLike) -> np.ndarray:
    """Returns a memory-mapped .npy file; a remote file is copied to the local disk first."""
    with local_copy(path) as local:
        return np.load(local, mmap_mode="r")  # a deleted copy stays mapped


def upload(source: str, path: PathLike) -> None:
    """Uploads a local file to an object store, where it appears atomically."""
    with remote.opened(path) as (system, bare):
        system.put_file(source, bare)


def read(path: PathLike) -> bytes:
    """Returns the content of a file."""
    with open_read(path) as file:
        return file.read()


def size(path: PathLike) -> int:
    """Returns the size of a file in bytes."""
    if not is_remote(path):
        return os.path.getsize(path)
    with remote.opened(path) as (system, bare):
        return int(system.size(bare))


def crc32c(path: PathLike) -> int:
    """Returns the CRC-32C of a file's bytes."""
    crc = 0
    with open_read(path) as file:
        while chunk := file.read(1 << 24):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def version(path: PathLike) -> str:
    """Returns a text that changes when a remote file changes, if its file system can detect that."""
    with remote.opened(path) as (system, bare):
        return str(system.ukey(bare))


def exists(path: PathLike) -> bool:
    """Returns whether a file or a directory exists."""
    return os.path.exists(path) if not is_remote(path) else _info(path) is not None


def exists_on_server(path: PathLike) -> bool:
    """Returns whether a file or a directory exists, also if another machine has just created it.

    NFS may remember for a minute that a name did not exist, unless its directory is opened.
    """
    if not is_remote(path):
        for directory in reversed(pathlib.Path(absolute(path)).parents):
            with contextlib.suppress(OSError):
                os.close(os.open(directory, os.O_RDONLY))
    return exists(path)


def is_directory(path: PathLike) -> bool:
    """Returns whether a directory exists; in an object store, whether any object lies under the path."""
    if not is_remote(path):
        return os.path.isdir(path)
    info = _info(path)
    return info is not None and info["type"] == "directory"


def is_file(path: PathLike) -> bool:
    """Returns whether a path exists and is not a directory."""
    return exists(path) and not is_directory(path)


def _info(path: PathLike) -> dict[str, Any] | None:
    """Returns a remote file system's information about a path; None if it does not exist.

    fsspec's own `isdir` and `exists` report network errors as a missing file, so a run would start again.
    """
    try:
        with remote.opened(path) as (system, bare):
            return system.info(bare)
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(directory: PathLike) -> list[str]:
    """Returns the sorted names of the entries of a directory; empty if the directory does not exist."""
    if not is_remote(directory):
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    try:
        with remote.opened(directory) as (system, bare):
            entries = system.ls(bare, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # A directory created in a browser is represented by an empty object of its name.
    entries = [entry for entry in entries if entry.strip("/") != bare.strip("/")]
    return sorted({name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2])})


def remote_files(directory: PathLike) -> dict[str, tuple[int, int | None]]:
    """Returns {name: (bytes, CRC-32C)} of the files in a remote directory; only GCS knows the CRC-32C."""
    with remote.opened(directory) as (system, bare):
        entries = system.ls(bare, detail=True)
    crcs = (each.get("crc32c") for each in entries)
    return {
        name(each["name"]): (each["size"], int.from_bytes(base64.b64decode(crc), "big") if crc else None)
        for each, crc in zip(entries, crcs, strict=True)
    }


def walk(directory: PathLike) -> list[str]:
    """Returns the sorted relative paths of all files under a directory; empty if it does not exist."""
    if not is_remote(directory):
        folders = os.walk(directory, onerror=_refuse)  # by default it skips unreadable directories
        found = [os.path.join(folder, each) for folder, _, names in folders for each in names]
        return sorted(os.path.relpath(path, directory) for path in found)
    try:
        with remote.opened(directory) as (system, bare):
            found = system.find(bare)
    except (FileNotFoundError, NotADirectoryError):
        return []
    start = len(bare.strip("/")) + 1
    return sorted(each for path in found if (each := path.strip("/")[start:]))


def _refuse(error: OSError) -> None:
    # Another process may have removed it after it was listed.
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error


def make_directory(path: PathLike) -> None:
    """Creates a directory and its missing parents; an object store has no directories to create."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)
        return
    with remote.opened(path) as (system, bare):
        if scheme(path) not in remote.OBJECT_STORES:
            system.makedirs(bare, exist_ok=True)


def move(source: PathLike, target: PathLike) -> None:
    """Renames a file, replacing the target, or a directory to a path that does not exist.

    In an object store the data is copied: each file still appears atomically, a directory file by file.
    """
    if not is_remote(source):
        os.replace(source, target)
        return
    with remote.opened(source) as (system, bare):
        system.mv(bare, remote.file_system(target)[1], recursive=is_directory(source))


def remove(path: PathLike, missing_ok: bool = False) -> None:
    """Deletes a file."""
    try:
        if not is_remote(path):
            os.unlink(path)
            return
        with remote.opened(path) as (system, bare):
            system.rm_file(bare)
    except FileNotFoundError:
        if not missing_ok:
            raise


def remove_tree(path: PathLike) -> None:
    """Deletes a directory and its content, if it exists."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError), remote.opened(path) as (system, bare):
        system.rm(bare, recursive=True)
