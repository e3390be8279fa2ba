"""Finds the directories of this user in which caches are kept between commands."""

from __future__ import annotations

import os
import tempfile


def directory(name: str) -> str:
    """Returns the local directory of one of bert_jax's caches, in $XDG_CACHE_HOME or ~/.cache.

    Without a home directory it is a new temporary directory: in a shared one, another user could put programs
    into the cache of compiled ones.
    """
    home = os.path.expanduser("~")  # which is "~" without $HOME and without an entry in /etc/passwd
    base = os.environ.get("XDG_CACHE_HOME") or (os.path.isabs(home) and os.path.join(home, ".cache"))
    return os.path.join(base or tempfile.mkdtemp(prefix="bert_jax-"), "bert_jax", name)
