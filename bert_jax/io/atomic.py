"""Writes files atomically: under a temporary name, flushed to the disk, then renamed.

A process that is killed may leave NAME.tmp-* behind, which can be deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from typing import IO

from bert_jax.io import files, scratch


@contextlib.contextmanager
def replace_file(path: files.PathLike, sync: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing and renames it to `path` when the block ends without an error.

    For a URL it is a local file, which is uploaded at the end. If `path` is a symbolic link, its target is
    replaced. A device or a pipe, such as /dev/stdout, is written to directly. If `sync`, a power failure
    leaves either the old file or the new one. Use False for files that are recreated after a failure.
    """
    path = os.fspath(path)
    if files.is_remote(path):
        with scratch.directory() as folder:
            copy = os.path.join(folder, "file")
            with open(copy, "wb", buffering=1 << 20) as file:
                yield file
            files.upload(copy, path)
        return
    if is_written_in_place(path):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    temporary = f"{target}.tmp-{uuid.uuid4().hex}"
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename = path  # the name that the user knows
        raise
    if sync:
        _sync(os.path.dirname(target))


def is_written_in_place(path: str) -> bool:
    """Returns True for a device or a pipe, which `replace_file` writes to directly."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def sync_tree(path: files.PathLike) -> None:
    """Flushes the files under a local directory, and its name, to the disk; does nothing for a URL."""
    if files.is_remote(path):
        return
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
    _sync(files.parent(path))


def _sync(path: str) -> None:
    """Flushes the content of a local file, or the entries of a local directory, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some network file systems do not support it for directories
            raise


def write_file(path: files.PathLike, content: bytes, sync: bool = True) -> None:
    """Writes `content` to `path` atomically. For `sync`, see `replace_file`."""
    with replace_file(path, sync) as file:
        file.write(content)


def write_text(path: files.PathLike, content: str, sync: bool = True) -> None:
    """The same for a text in UTF-8; bytes of a file name that are not UTF-8 are escaped by backslashes."""
    write_file(path, content.encode(errors="backslashreplace"), sync)


@contextlib.contextmanager
def replace_directory(path: files.PathLike) -> Iterator[str]:
    """Yields an empty local directory that becomes `path` when the block ends without an error.

    If the process is killed between the two renames, the old content is in NAME.replaced-*. A mount point or
    the working directory, which cannot be renamed, and a URL get the files one by one at the end.
    """
    path = os.fspath(path)
    is_remote = files.is_remote(path)
    path = path if is_remote else os.path.realpath(path)
    if is_remote or (os.path.isdir(path) and (os.path.ismount(path) or os.path.samefile(path, os.getcwd()))):
        with scratch.directory() as made:
            yield made
            old, new = {*files.walk(path)}, {*files.walk(made)}
            unwanted = new - old  # after an error
            try:
                copy_directory(made, path)
                unwanted = set() if is_remote else old - new
            finally:
                with contextlib.suppress(OSError):  # the bucket may be unreachable
                    for name in unwanted:
                        files.remove(os.path.join(path, name), missing_ok=True)
        return
    folder = os.path.dirname(path)
    files.make_directory(folder)
    prefix = f".bert_jax-{os.path.basename(path)}-"
    _remove_abandoned(folder, prefix)
    with scratch.directory(folder, prefix) as temporary, _locked(temporary):
        made, replaced = os.path.join(temporary, "new"), f"{path}.replaced-{uuid.uuid4().hex}"
        os.mkdir(made)
        yield made
        with contextlib.ExitStack() as undo:
            if os.path.isdir(path):
                os.rename(path, replaced)
                undo.callback(os.rename, replaced, path)
            os.rename(made, path)
            undo.pop_all()
        shutil.rmtree(replaced, ignore_errors=True)
        _sync(folder)


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[bool]:
    """Yields whether a directory could be locked. The lock ends with the block or the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_locked = True
        except OSError:  # Another process holds it, or the file system has no locks.
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: str, prefix: str) -> None:
    """Removes the temporary directories of processes that were killed while they made the same output."""
    for name in filter(lambda name: name.startswith(prefix), files.names(folder)):
        with contextlib.suppress(OSError), _locked(path := os.path.join(folder, name)) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(path)


def copy_file(source: files.PathLike, target: files.PathLike) -> None:
    """Copies a local or remote file atomically."""
    with files.open_read(source) as file, replace_file(target) as out:
        shutil.copyfileobj(file, out, 1 << 20)


def copy_directory(source: files.PathLike, target: files.PathLike) -> None:
    """Copies the files of a directory one by one, in the order of their names."""
    for name in files.walk(source):
        files.make_directory(os.path.dirname(os.path.join(target, name)))
        copy_file(os.path.join(source, name), os.path.join(target, name))
