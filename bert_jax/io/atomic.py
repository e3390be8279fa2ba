"""Writes files atomically: under a unique temporary name, flushed to the disk, then renamed.

All files of the project are written here, except logs that are appended to and files that libraries write
themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import IO, Any

from bert_jax.io import files, fonts, owners, scratch

_TEMPORARY = ".tmp-"  # NAME.tmp-OWNER-RANDOM
_NAME_BYTES = 150  # of the final name, in that of a temporary file
_cleaned: set[str] = set()  # directories in which this process has removed leftovers of dead processes


@contextlib.contextmanager
def replace_file(path: files.PathLike, sync: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing and renames it to `path` when the block ends without an error.

    The temporary file lies next to `path`. For a URL it is a local file, which is uploaded at the end.

    Args:
        path: the final name. An existing file of that name is replaced in one step. A device or a pipe, such
            as /dev/stdout, is written to directly.
        sync: whether the bytes are flushed to the disk before the file is renamed, so that a power failure
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
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with open(path, "wb") as file:
            yield file
        return
    directory = os.path.dirname(os.path.abspath(path))
    if directory not in _cleaned:
        _cleaned.add(directory)
        scratch.remove_leftovers(directory, infix=_TEMPORARY)
    # A name may have 255 bytes in all.
    name = os.fsencode(os.path.basename(path))[:_NAME_BYTES].decode(errors="ignore")
    temporary = os.path.join(
        os.path.dirname(path), f"{name}{_TEMPORARY}{owners.token()}-{os.urandom(4).hex()}"
    )
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename = path  # the name that the user knows
        raise
    if sync:
        _sync_directory(directory)


def _sync_directory(directory: str) -> None:
    """Flushes the entries of a local directory to the disk."""
    with contextlib.suppress(OSError):  # some network file systems refuse it for directories
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file(path: files.PathLike, content: bytes, sync: bool = True) -> None:
    """Writes `content` to `path` atomically. For `sync`, see `replace_file`."""
    with replace_file(path, sync) as file:
        file.write(content)


def write_text(path: files.PathLike, content: str, sync: bool = True) -> None:
    """Writes `content` to `path` in UTF-8, atomically. For `sync`, see `replace_file`.

    Bytes of a file name in `content` that are not UTF-8 are escaped by backslashes, as on the terminal.
    """
    write_file(path, content.encode(errors="backslashreplace"), sync)


def save_figure(figure: Any, path: files.PathLike, dpi: int) -> None:
    """Writes a matplotlib figure in the format that the suffix of `path` names, and creates its directory."""
    picture = fonts.render(figure, format=files.suffix(path).removeprefix("."), dpi=dpi)
    files.make_directory(files.parent(path))
    write_file(path, picture)


@contextlib.contextmanager
def replace_directory(path: files.PathLike) -> Iterator[str]:
    """Yields an empty local directory that becomes `path` when the block ends without an error.

    An existing directory is replaced at once, unless it is a mount point or the working directory, which have
    to stay: their content is. The content for a URL is uploaded at the end, file by file.
    """
    path = os.fspath(path)
    remote = files.is_remote(path)
    stays = not remote and _has_to_stay(path)
    if not remote:
        files.make_directory(files.parent(path))
    with scratch.directory(None if remote else path if stays else files.parent(path)) as temporary:
        made = os.path.join(temporary, "out")
        os.mkdir(made)
        yield made
        if remote:
            copy_directory(made, path)
            return
        if stays:
            replaced = os.path.join(temporary, "replaced")
            os.mkdir(replaced)
            for name in os.listdir(path):
                if name != os.path.basename(temporary):
                    os.rename(os.path.join(path, name), os.path.join(replaced, name))
            for name in os.listdir(made):
                os.rename(os.path.join(made, name), os.path.join(path, name))
            return
        if os.path.isdir(path):
            os.rename(path, os.path.join(temporary, "replaced"))
        os.rename(made, path)


def _has_to_stay(path: str) -> bool:
    return os.path.isdir(path) and (os.path.ismount(path) or os.path.samefile(path, os.getcwd()))


def copy_file(source: files.PathLike, target: files.PathLike) -> None:
    """Copies a local or remote file atomically."""
    with files.open_read(source) as file, replace_file(target) as out:
        shutil.copyfileobj(file, out, 1 << 20)


def copy_directory(source: files.PathLike, target: files.PathLike) -> None:
    """Copies the files of a directory one by one, in the order of their names."""
    for name in files.walk(source):
        files.make_directory(os.path.dirname(os.path.join(target, name)))
        copy_file(os.path.join(source, name), os.path.join(target, name))
