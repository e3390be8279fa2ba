"""Opens the file systems of URLs with fsspec, and turns their many kinds of errors into OSErrors."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from etils import epy

from bert_jax.errors import UserError, install_hint, is_installed, optional_imports

with epy.lazy_imports():
    import fsspec  # slow to import, and not needed by workers that read local files
with optional_imports("gcs"):
    import aiohttp

_BUFFER = 1 << 20  # bytes that are read from a remote file at a time
_SILENCE = 60  # seconds without a byte after which gcsfs repeats a request; by default it waits forever

# File systems without directories: creating one there does nothing, or even creates a bucket.
OBJECT_STORES = ("gs", "gcs", "s3", "s3a", "az", "abfs", "abfss")

_STATUS_NUMBERS = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT}
# Errors that a remote file system may raise without their number.
_NUMBERS: dict[type[Exception], int] = {
    FileNotFoundError: errno.ENOENT,
    FileExistsError: errno.EEXIST,
    IsADirectoryError: errno.EISDIR,
    NotADirectoryError: errno.ENOTDIR,
    PermissionError: errno.EACCES,
}


def file_system(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, and the path within it; UserError if there is none."""
    # Without a handler, a failed request prints a traceback of the error that is also raised.
    logging.getLogger("gcsfs").addHandler(logging.NullHandler())
    for protocol in OBJECT_STORES:  # set globally, since orbax opens them too
        fsspec.config.conf.setdefault(protocol, {}).setdefault("use_listings_cache", False)
    path = os.fspath(path)
    if path.startswith(("gs:", "gcs:")) and is_installed("aiohttp"):
        timeout = aiohttp.ClientTimeout(sock_connect=_SILENCE, sock_read=_SILENCE)
        fsspec.config.conf["gs"].setdefault("requests_timeout", timeout)
    try:
        system, bare = fsspec.core.url_to_fs(path)
    except (ImportError, ValueError) as error:
        hint = f"; {install_hint('gcs')}" if path.startswith(("gs:", "gcs:")) else ""
        raise UserError(f"cannot open {path}: {' '.join(str(error).split())}{hint}") from None
    system.invalidate_cache()  # the file system may have been opened with a cache elsewhere
    return system, bare


@contextlib.contextmanager
def errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns any error of a remote file system into a one-line OSError that contains the path."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.filename is not None:
            raise
        number = getattr(error, "errno", None) or _NUMBERS.get(type(error))
        if number is None:
            code = str(getattr(error, "code", None) or getattr(error, "status", None) or "")
            number = _STATUS_NUMBERS.get(int(code) if code.isdigit() else 0, errno.EIO)
        number = max(number, 0) or errno.EIO  # name resolution has negative numbers
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if number != errno.EIO and isinstance(error, OSError):
            reason = os.strerror(number)
        raise OSError(number, reason, os.fspath(path)) from error


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, str]]:
    """Yields what `file_system` returns, in the context of `errors`."""
    system, bare = file_system(path)
    with errors(path):
        yield system, bare


def read_ranges(ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    """Returns the bytes of (URL, start, end) ranges, shorter at the end of a file; each folder at once."""
    folders = [path.rpartition("/")[0] for path, _, _ in ranges]
    systems = {folder: file_system(folder) for folder in set(folders)}
    contents: list[Any] = [b""] * len(ranges)
    for folder, (system, bare) in systems.items():
        places = [place for place, each in enumerate(folders) if each == folder]
        paths = [bare + ranges[place][0][len(folder) :] for place in places]
        starts, ends = ([ranges[place][side] for place in places] for side in (1, 2))
        with errors(folder):
            results = system.cat_ranges(paths, starts, ends, on_error="return")
        for place, content in zip(places, results, strict=True):
            contents[place] = content
    for (path, _, _), content in zip(ranges, contents, strict=True):
        with errors(path):
            if isinstance(content, BaseException):
                raise content
    return contents


def open_read(path: str) -> BinaryIO:
    """Opens a remote file for reading; see `files.open_read`."""
    return io.BufferedReader(_File(path), _BUFFER)


class _File(io.RawIOBase):
    """An fsspec file that raises OSErrors whatever errors its file system raises."""

    def __init__(self, path: str):
        self.name = path
        with opened(path) as (system, bare):
            self._file = system.open(bare, "rb", block_size=_BUFFER)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with errors(self.name):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            if hasattr(self, "_file"):  # not set if opening the file failed
                self._file.close()
            super().close()
