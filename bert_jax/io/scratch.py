"""Creates temporary directories and files, and removes those that dead processes left behind.

Their names contain the identifier of the process that created them (`owners.token`). A killed process leaves
its temporaries behind; the next process that creates one in the same directory removes those whose owner is
dead. A process on another machine may be alive and share the disk, so its temporaries are removed only when
nothing in them has changed for a day.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator

from bert_jax.errors import UserError
from bert_jax.io import owners

_DAY = 24 * 3600.0
_PREFIX, _KEPT_PREFIX = ".bert_jax-", ".bert_jax_kept-"
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
def directory(parent: str | None = None) -> Iterator[str]:
    """Yields a new local directory and removes it afterwards.

    Args:
        parent: the directory in which it is created; by default the system's directory for temporary files.
    """
    parent = parent or system_directory()
    remove_leftovers(parent, prefix=_PREFIX)
    path = tempfile.mkdtemp(prefix=f"{_PREFIX}{owners.token()}-", dir=parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def kept_file(name: str, content: bytes) -> str:
    """Returns the path of a new temporary file, which exists until this process ends."""
    # It never changes, so its age says nothing of a process on another machine.
    remove_leftovers(system_directory(), prefix=_KEPT_PREFIX, of_others=False)
    _kept.append(tempfile.TemporaryDirectory(prefix=f"{_KEPT_PREFIX}{owners.token()}-"))
    path = os.path.join(_kept[-1].name, name)
    with open(path, "wb") as file:
        file.write(content)
    return path


def remove_leftovers(directory: str, prefix: str = "", infix: str = "", of_others: bool = True) -> None:
    """Removes files and directories of dead processes, by the prefix and infix of their names.

    Args:
        directory: the local directory to clean up; its subdirectories are not searched.
        prefix: the start of the names.
        infix: a part of the names.
        of_others: whether those of other machines are removed once nothing in them has changed for a day.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(prefix) and infix in entry.name and _is_left_over(entry, of_others):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):  # another process may have removed it first
                        os.unlink(entry.path)


def _is_left_over(entry: os.DirEntry, of_others: bool) -> bool:
    dead = owners.is_dead(entry.name)
    if dead is not None:
        return dead
    return of_others and owners.is_token(entry.name) and time.time() - _changed(entry) > _DAY


def _changed(entry: os.DirEntry) -> float:
    """Returns when a file, or anything in a directory, was last modified; the current time if unknown."""
    try:
        newest = entry.stat(follow_symlinks=False).st_mtime
        for folder, _, names in os.walk(entry.path):
            paths = [os.path.join(folder, name) for name in names]
            newest = max([newest, os.stat(folder).st_mtime, *(os.lstat(path).st_mtime for path in paths)])
        return newest
    except OSError:
        return time.time()
