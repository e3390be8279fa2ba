"""Finds the directories of this user in which caches are kept between commands."""

from __future__ import annotations

import os

from bert_jax.errors import UserError
from bert_jax.io import scratch


def directory(name: str) -> str:
    """Returns the local directory of one of bert_jax's caches, in $XDG_CACHE_HOME or ~/.cache.

    Without a home directory it is in a folder of the user in the directory for temporary files.

    Raises:
        UserError: that folder belongs to another user, or no directory for temporary files can be written.
    """
    home = os.path.expanduser("~")  # which is "~" without $HOME and without an entry in /etc/passwd
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.isabs(home) and os.path.join(home, ".cache"))
    return os.path.join(base or _without_home(), "bert_jax", name)


def _without_home() -> str:
    """Returns a directory that this user alone can use; see `directory`."""
    path = os.path.join(scratch.system_directory(), f"bert_jax-of-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.lstat(path).st_uid != os.getuid():  # who could put programs into the cache of compiled ones
        raise UserError(f"{path}: belongs to another user; set XDG_CACHE_HOME to a directory of your own")
    return path
