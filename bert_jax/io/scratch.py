"""Temporary directories and files, and the directories in which this user's caches are kept."""

from __future__ import annotations

import os
import tempfile

_kept: list[tempfile.TemporaryDirectory] = []


def directory(parent: str | None = None, prefix: str = ".bert_jax-") -> tempfile.TemporaryDirectory[str]:
    """Returns the context of a new local directory, in `parent` or $TMPDIR."""
    return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def kept_file(name: str, content: bytes) -> str:
    """Returns the path of a new temporary file, which exists until this process ends."""
    _kept.append(tempfile.TemporaryDirectory(prefix=".bert_jax-"))
    path = os.path.join(_kept[-1].name, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def cache_directory(name: str) -> str:
    """Returns the local directory of one of bert_jax's caches, in $XDG_CACHE_HOME or ~/.cache.

    Without a home it is temporary: in a shared directory, another user could put programs into the cache.
    """
    home = os.path.expanduser("~")  # "~" without $HOME and without an entry in /etc/passwd
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.isabs(home) and os.path.join(home, ".cache"))
    return os.path.join(base or tempfile.mkdtemp(prefix="bert_jax-"), "bert_jax", name)
