"""Temporary directories and files, and the directories in which this user's caches are kept."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from bert_jax.errors import UserError

_kept: list[tempfile.TemporaryDirectory] = []


def system_directory() -> str:
    """Returns the system's directory for temporary files: $TMPDIR, or the first usable one of others.

    Raises:
        UserError: none of them can be written.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise UserError(f"{error.strerror}; set TMPDIR to a directory that can be written") from None


@contextlib.contextmanager
def directory(parent: str | None = None, prefix: str = ".bert_jax-") -> Iterator[str]:
    """Yields a new local directory, in `parent` or the system's directory, and removes it afterwards."""
    parent = parent or system_directory()
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as path:
        yield path


def kept_file(name: str, content: bytes) -> str:
    """Returns the path of a new temporary file, which exists until this process ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix=".bert_jax-", dir=system_directory()))
    path = os.path.join(_kept[-1].name, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def cache_directory(name: str) -> str:
    """Returns the local directory of one of bert_jax's caches, in $XDG_CACHE_HOME or ~/.cache.

    Without a home directory it is a new temporary directory: in a shared one, another user could put programs
    into the cache of compiled ones.
    """
    home = os.path.expanduser("~")  # which is "~" without $HOME and without an entry in /etc/passwd
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.isabs(home) and os.path.join(home, ".cache"))
    return os.path.join(base or tempfile.mkdtemp(prefix="bert_jax-"), "bert_jax", name)
