"""Opens compressed files according to their suffix and reports damaged ones."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from bert_jax.errors import UserError
from bert_jax.io import files

try:
    from compression import zstd
except ImportError:  # before Python 3.14
    from backports import zstd

OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": zstd.open,
}


def suffix(path: str) -> str:
    """Returns the suffix that names a file's compression, in lower case; "" if the file is not compressed."""
    end = os.path.splitext(path)[1].lower()
    return end if end in OPENERS else ""


def strip_suffix(path: str) -> str:
    """Returns a file's name without its compression suffix, if it has one."""
    return path[: len(path) - len(suffix(path))]


@contextlib.contextmanager
def opened(path: files.PathLike) -> Iterator[BinaryIO]:
    """Yields a local or remote file, opened for reading and decompressed according to its suffix."""
    path = os.fspath(path)
    with files.open_read(path) as raw:
        if kind := suffix(path):
            with errors(path), OPENERS[kind](raw) as file:
                yield file
        else:
            yield raw


@contextlib.contextmanager
def errors(path: str) -> Iterator[None]:
    """Turns the errors that decompressors raise for damaged content into UserErrors that name the file."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, zstd.ZstdError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise UserError(f"{path} is truncated or not a {suffix(path)} file ({error})") from None
