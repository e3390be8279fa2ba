"""Temporary directories and files that do not outlive their process for long, however it ended.

Their names carry the process that made them (`owners.token`). A process that is killed leaves them behind,
and the next one that makes a temporary in the same directory removes those whose process is dead. Of a
process on another machine, which may be alive and write to the same disk, they are removed once nothing in
them has changed for a day.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from bert_jax.io import owners

_DAY = 24 * 3600.0
_PREFIX = ".bert_jax-"


@contextlib.contextmanager
def directory(parent: str | None = None) -> Iterator[str]:
    """A new local directory in `parent`, or where temporary files go, that is removed when the block ends."""
    parent = parent or tempfile.gettempdir()
    remove_leftovers(parent, prefix=_PREFIX)
    path = tempfile.mkdtemp(prefix=f"{_PREFIX}{owners.token()}-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_leftovers(directory: str, prefix: str = "", infix: str = "") -> None:
    """Removes what dead processes left in a local directory, of the names with this prefix and infix."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and infix in entry.name and _is_left_over(entry):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):  # another process was faster
                        os.unlink(entry.path)


def _is_left_over(entry: os.DirEntry) -> bool:
    dead = owners.is_dead(entry.name)
    if dead is not None:
        return dead
    return owners.is_token(entry.name) and time.time() - _changed(entry) > _DAY


def _changed(entry: os.DirEntry) -> float:
    """When anything in a file or directory was last changed; now where that cannot be told."""
    try:
        newest = entry.stat(follow_symlinks=False).st_mtime
        for folder, _, names in os.walk(entry.path):
            newest = max([newest, os.stat(folder).st_mtime, *(_modified(folder, name) for name in names)])
        return newest
    except OSError:
        return time.time()


def _modified(folder: str, name: str) -> float:
    return os.lstat(os.path.join(folder, name)).st_mtime
