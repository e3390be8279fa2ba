"""Files of records, on a local disk or in an object store (gs://..., s3://...: whatever fsspec opens)."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Any, BinaryIO

import numpy as np

from bert_jax.errors import UserError

_BUFFER = 1 << 20


def is_remote(path: str) -> bool:
    """Whether a path is a URL."""
    return "://" in path


def absolute(path: str) -> str:
    """The path from the root; a URL as it is."""
    return path if is_remote(path) else os.path.abspath(path)


def open_read(path: str) -> BinaryIO:
    """Opens a file for reading; it can be sought in.

    Raises:
        OSError: it cannot be read. UserError: fsspec has no such file system here.
    """
    if not is_remote(path):
        return open(path, "rb")
    system, bare = _remote(path)
    return system.open(bare, "rb", block_size=_BUFFER)


def open_local(path: str) -> BinaryIO:
    """Opens a file, or a copy of a remote one on the local disk that goes when it is closed."""
    if not is_remote(path):
        return open(path, "rb")
    copy = tempfile.NamedTemporaryFile()  # noqa: SIM115 (the caller closes it)
    system, bare = _remote(path)
    system.get_file(bare, copy.name)
    return copy


def load_array(path: str) -> np.ndarray:
    """A .npy file, mapped into memory; of a remote one, a copy of it."""
    with open_local(path) as file:
        return np.load(file.name, mmap_mode="r")


def upload(source: str, path: str) -> None:
    """Puts a local file into an object store, where it appears whole."""
    system, bare = _remote(path)
    system.put_file(source, bare)


def read(path: str) -> bytes:
    """The content of a file."""
    with open_read(path) as file:
        return file.read()


def size(path: str) -> int:
    """The bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    system, bare = _remote(path)
    return int(system.size(bare))


def exists(path: str) -> bool:
    """Whether there is a file or a directory."""
    if not is_remote(path):
        return os.path.exists(path)
    system, bare = _remote(path)
    return system.exists(bare)


def is_directory(path: str) -> bool:
    """Whether there is a directory; in an object store, whether anything lies under the path."""
    if not is_remote(path):
        return os.path.isdir(path)
    system, bare = _remote(path)
    return system.isdir(bare)


def names(directory: str) -> list[str]:
    """The names of what a directory holds, sorted; none where there is no directory."""
    if not is_directory(directory):
        return []
    if not is_remote(directory):
        return sorted(os.listdir(directory))
    system, bare = _remote(directory)
    found = (path.rstrip("/").rpartition("/")[2] for path in system.ls(bare, detail=False))
    return sorted({name for name in found if name})


def make_directory(path: str) -> None:
    """Makes a directory and those above it, where they are missing; an object store has none to make."""
    if not is_remote(path):
        os.makedirs(path, exist_ok=True)
        return
    system, bare = _remote(path)
    system.makedirs(bare, exist_ok=True)


def move(source: str, target: str) -> None:
    """Renames a file over another. In an object store it is copied; the target appears whole all the same."""
    if not is_remote(source):
        os.replace(source, target)
        return
    system, bare = _remote(source)
    system.mv(bare, _remote(target)[1])


def remove(path: str) -> None:
    """Deletes a file."""
    if not is_remote(path):
        os.unlink(path)
        return
    system, bare = _remote(path)
    system.rm_file(bare)


def remove_tree(path: str) -> None:
    """Deletes a directory with all that it holds, if it is there."""
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    system, bare = _remote(path)
    with contextlib.suppress(FileNotFoundError):
        system.rm(bare, recursive=True)


def _remote(path: str) -> tuple[Any, str]:
    # Here, since workers that read local files need not wait for its import.
    import fsspec

    try:
        system, bare = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise UserError(f"can't open {path}: {error}") from None
    system.invalidate_cache()  # other processes write, too
    return system, bare
