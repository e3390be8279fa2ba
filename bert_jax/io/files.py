"""Files by their path: a local one, or a URL of anything that fsspec opens (gs://, s3://, hf://, memory://).

A path is a `str` (or anything with `__fspath__`) everywhere in this project, and these functions are all that
is done with one, so that every command takes a URL wherever it takes a path. Strings rather than a path type,
since `os.path.join` and `os.path.basename` work on URLs, while `pathlib` and `etils.epath` turn one that they
do not know (for epath: all but gs, s3, az and hf) into the name of a local folder. fsspec alone is used for
remote files; here its many kinds of errors become OSErrors with the path in them, and its listing caches are
switched off, since other processes write too.

Checkpoints are the exception: orbax and TensorStore write arrays with their own clients, which know local
paths, gs:// and s3:// (`bert_jax.checkpoint` says so to those who give another URL). Libraries that open a
local file by its name get one from `local_copy`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
from etils import epy

from bert_jax.errors import UserError, install_hint
from bert_jax.io import scratch

with epy.lazy_imports():
    import fsspec  # workers that read local files need not wait for it

PathLike = str | os.PathLike[str]

_BUFFER = 1 << 20

# What is left of a URL that went through pathlib, or was typed so; it would become a folder named `gs:`.
_ONE_SLASH = re.compile(r"(gs|gcs|s3|s3a|az|abfs|abfss|adl|hf|https?|s?ftp|hdfs|memory|file):/(?!/)")

# File systems without directories: making one does nothing there, or even makes a bucket.
_OBJECT_STORES = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss")

# Of errors that a remote file system raised without a number.
_NUMBERS = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
}
_STATUS_NUMBERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}


def is_remote(path: PathLike) -> bool:
    """Whether a path is a URL.

    Raises:
        UserError: It is a URL of which a slash is missing.
    """
    path = os.fspath(path)
    if match := _ONE_SLASH.match(path):
        scheme, rest = match[1], path[match.end() :]
        raise UserError(f"{path}: expected two slashes after {scheme}:, as in {scheme}://{rest}")
    return "://" in path


def scheme(path: PathLike) -> str:
    """`gs` of gs://bucket/name; "" of a local path."""
    return os.fspath(path).partition("://")[0] if is_remote(path) else ""


def absolute(path: PathLike) -> str:
    """The path from the root, without a slash at its end; a URL as it is, but for that."""
    path = os.fspath(path)
    return _strip(path) if is_remote(path) else os.path.abspath(path)


def parent(path: PathLike) -> str:
    """The directory that a path lies in; of a URL never less than its scheme and its bucket or host."""
    path = absolute(path)
    if not is_remote(path):
        return os.path.dirname(path)
    head, _, rest = path.partition("://")
    return f"{head}://{rest.rpartition('/')[0] or rest}"


def name(path: PathLike) -> str:
    """The last part of a path."""
    return os.path.basename(_strip(os.fspath(path)))


def suffix(path: PathLike) -> str:
    """The ending of the last part of a path, in lower case, with its dot; "" without one."""
    return os.path.splitext(name(path))[1].lower()


def file_system(path: PathLike) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it.

    Raises:
        UserError: There is no such file system, or the package for it is missing.
    """
    # Else a request that failed prints a traceback of what is also raised.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    for protocol in _OBJECT_STORES:  # as orbax opens them, too
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    path = os.fspath(path)
    try:
        system, bare = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        hint = f"; {install_hint('gcs')}" if scheme(path) in ("gs", "gcs") else ""
        raise UserError(f"can't open {path}: {' '.join(str(error).split())}{hint}") from None
    system.invalidate_cache()  # of a file system that was opened with one elsewhere
    return system, bare


@contextlib.contextmanager
def remote_errors(path: PathLike) -> Iterator[None]:
    """Turns whatever a remote file system raises into an OSError of one line with the path in it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.filename is not None:
            raise
        number = getattr(error, "errno", None) or next(
            (number for kind, number in _NUMBERS.items() if isinstance(error, kind)), None
        )
        if number is None:
            code = str(getattr(error, "code", None) or getattr(error, "status", None) or "")
            number = _STATUS_NUMBERS.get(int(code) if code.isdigit() else 0, errno.EIO)
        reason = os.strerror(number)
        if number == errno.EIO or not isinstance(error, OSError):
            reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise OSError(number, reason, os.fspath(path)) from error


def open_read(path: PathLike) -> BinaryIO:
    """Opens a file for reading; it can be sought in.

    Raises:
        OSError: it cannot be read. UserError: fsspec has no such file system here.
    """
    if not is_remote(path):
        return open(path, "rb")
    return io.BufferedReader(_RemoteFile(os.fspath(path)), _BUFFER)


class _RemoteFile(io.RawIOBase):
    """A file of fsspec whose errors are OSErrors, whatever the file system calls them."""

    def __init__(self, path: str):
        self.name = path
        system, bare = file_system(path)
        with remote_errors(path):
            self._file = system.open(bare, "rb", block_size=_BUFFER)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with remote_errors(self.name):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            if hasattr(self, "_file"):  # else it was never opened
                self._file.close()
            super().close()


@contextlib.contextmanager
def local_copy(path: PathLike) -> Iterator[str]:
    """The local path of a file or directory: its own, or that of a copy, which goes when the block ends."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    with scratch.directory() as folder:
        copy = os.path.join(folder, name(path))
        for each in walk(path) if is_directory(path) else [""]:
            source, target = (os.path.join(path, each), os.path.join(copy, each)) if each else (path, copy)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            system, bare = file_system(source)
            with remote_errors(source):
                system.get_file(bare, target)
        yield copy


def open_local(path: PathLike) -> BinaryIO:
    """Opens a file, or a copy of a remote one on the local disk that goes when it is closed."""
    if not is_remote(path):
        return open(path, "rb")
    copy: Any = tempfile.NamedTemporaryFile()  # noqa: SIM115 (the caller closes it)
    system, bare = file_system(path)
    with remote_errors(path):
        system.get_file(bare, copy.name)
    return copy


def load_array(path: PathLike) -> np.ndarray:
    """A .npy file, mapped into memory; of a remote one, a copy of it."""
    with open_local(path) as file:
        return np.load(file.name, mmap_mode="r")


def upload(source: str, path: PathLike) -> None:
    """Puts a local file into an object store, where it appears whole."""
    system, bare = file_system(path)
    with remote_errors(path):
        system.put_file(source, bare)


def read(path: PathLike) -> bytes:
    """The content of a file."""
    with open_read(path) as file:
        return file.read()


def read_text(path: PathLike) -> str:
    """The content of a file in UTF-8.

    Raises:
        UnicodeDecodeError: it is of another encoding.
    """
    return read(path).decode()


def size(path: PathLike) -> int:
    """The bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    system, bare = file_system(path)
    with remote_errors(path):
        return int(system.size(bare))


def exists(path: PathLike) -> bool:
    """Whether there is a file or a directory."""
    return os.path.exists(path) if not is_remote(path) else _info(path) is not None


def is_directory(path: PathLike) -> bool:
    """Whether there is a directory; in an object store, whether anything lies under the path."""
    if not is_remote(path):
        return os.path.isdir(path)
    info = _info(path)
    return info is not None and info["type"] == "directory"


def is_file(path: PathLike) -> bool:
    """Whether there is something that is not a directory."""
    return exists(path) and not is_directory(path)


def _info(path: PathLike) -> dict[str, Any] | None:
    """What a remote file system knows of a path; None where there is none.

    An error of the network is raised: fsspec's own `isdir` and, for some file systems, `exists` take it for
    an absence, by which a run would start again from scratch.
    """
    system, bare = file_system(path)
    try:
        with remote_errors(path):
            return system.info(bare)
    except (FileNotFoundError, NotADirectoryError):
        return None


def names(directory: PathLike) -> list[str]:
    """The names of what a directory holds, sorted; none where there is no directory."""
    if not is_remote(directory):
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    system, bare = file_system(directory)
    try:
        with remote_errors(directory):
            entries = system.ls(bare, detail=False)
    except (FileNotFoundError, NotADirectoryError):
        return []
    # An empty object with the name of the directory stands for it, where one was made in a browser.
    entries = [entry for entry in entries if entry.strip("/") != bare.strip("/")]
    return sorted({name for entry in entries if (name := entry.rstrip("/").rpartition("/")[2])})


def walk(directory: PathLike) -> list[str]:
    """The files under a directory, relative to it, sorted; none where there is no directory."""
    if not is_remote(directory):
        found = [os.path.join(folder, each) for folder, _, files in os.walk(directory) for each in files]
        return sorted(os.path.relpath(path, directory) for path in found)
    system, bare = file_system(directory)
    try:
        with remote_errors(directory):
            found = system.find(bare)
    except (FileNotFoundError, NotADirectoryError):
        return []
    start = len(bare.strip("/")) + 1
    return sorted(each for path in found if (each := path.strip("/")[start:]))


def make_directory(path: PathLike) -> None:
    """Makes a directory and those above it, where they are missing; an object store has none to make."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)
        return
    system, bare = file_system(path)
    if scheme(path) not in _OBJECT_STORES:
        with remote_errors(path):
            system.makedirs(bare, exist_ok=True)


def move(source: PathLike, target: PathLike) -> None:
    """Renames a file over another, or a directory to where none is.

    In an object store it is copied; a file appears whole there all the same, a directory file by file.
    """
    if not is_remote(source):
        os.replace(source, target)
        return
    system, bare = file_system(source)
    recursive = is_directory(source)
    with remote_errors(source):
        system.mv(bare, file_system(target)[1], recursive=recursive)


def remove(path: PathLike, missing_ok: bool = False) -> None:
    """Deletes a file."""
    with contextlib.suppress(*[FileNotFoundError] * missing_ok):
        if not is_remote(path):
            os.unlink(path)
            return
        system, bare = file_system(path)
        with remote_errors(path):
            system.rm_file(bare)


def remove_tree(path: PathLike) -> None:
    """Deletes a directory with all that it holds, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    system, bare = file_system(path)
    with contextlib.suppress(FileNotFoundError), remote_errors(path):
        system.rm(bare, recursive=True)


def _strip(path: str) -> str:
    """Without slashes at the end, but for a root's."""
    stripped = path.rstrip("/")
    return path if not stripped or stripped.endswith(":") else stripped
