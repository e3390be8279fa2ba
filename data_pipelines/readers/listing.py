"""Lists the files that the patterns of inputs find, on the local disk and on other file systems."""

from __future__ import annotations

import errno
import fnmatch
import functools
import glob
import itertools
import os
import re
from collections.abc import Iterator, Sequence

from bert_jax.errors import StorageError, UserError, file_error
from bert_jax.io import columnar, files, remote, tfds
from bert_jax.io.progress import log
from bert_jax.io.wording import some

# The last two are those of links to folders that lead back to themselves, which a pattern follows.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def matches(path: str, pattern: str) -> bool:
    """Returns whether a pattern of an input finds a file or a directory, which need not exist yet.

    Args:
        path: the absolute path.
        pattern: the absolute path or pattern.
    """
    return path == pattern or _match(path.split("/"), pattern.split("/"))


def _match(path: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not path
    first, *rest = pattern
    if first == "**" and _match(path, rest):
        return True
    if not path or (path[0].startswith(".") and not first.startswith(".")):
        return False
    if first == "**":
        return _match(path[1:], pattern)
    return (path[0] == first or fnmatch.fnmatchcase(path[0], first)) and _match(path[1:], rest)


def aliases_for(path: str, pattern: str) -> list[str]:
    """Returns the absolute paths of a file or directory by which a pattern of an input may find it.

    They are several if the pattern finds links to folders, or the path has one.

    Args:
        path: a local path or a URL, which need not exist yet.
        pattern: a pattern of an input.
    """
    aliases = [files.absolute(path)]
    if files.is_remote(path) or files.is_remote(pattern) or pattern.startswith(tfds.PREFIX):
        return aliases
    real = os.path.realpath(path)
    for folder in _folders_passed(files.absolute(pattern)):
        target = os.path.realpath(folder)
        if os.path.commonpath([target, real]) == target:
            aliases.append(os.path.normpath(os.path.join(folder, os.path.relpath(real, target))))
    return list(dict.fromkeys(aliases))


def _folders_passed(pattern: str) -> Iterator[str]:
    """Yields the folders from the root to those that a pattern finds, and the linked ones in the last."""
    for beginning in itertools.accumulate(pattern.split("/"), "{}/{}".format):
        folders = list(_found(beginning + "/"))  # finds no files
        yield from folders
    for found in folders:
        yield from (folder for folder, _ in _walk(found) if os.path.islink(folder))


def finds(pattern: str) -> bool:
    """Returns whether a local path or pattern finds anything.

    Raises:
        UserError: a folder cannot be read.
    """
    return any(True for _ in _found(pattern))


def _found(pattern: str) -> Iterator[str]:
    """Yields the local paths that a pattern finds.

    Raises:
        UserError: a folder cannot be read.
    """
    if os.path.exists(pattern):
        yield os.fspath(pattern)
        return
    parts = pattern.split("/")
    magic = (place for place, part in enumerate(parts) if glob.has_magic(part))
    literal = len(parts) - 1
    # The folder "my [v1] data" is not a pattern.
    start = next((place for place in magic if not os.path.exists("/".join(parts[: place + 1]))), literal)
    beginning = re.sub("/+$", "/", "".join(f"{part}/" for part in parts[:start]))
    yield from _expanded(beginning, [part for part in parts[start:-1] if part] + parts[-1:])


def _expanded(folder: str, parts: Sequence[str]) -> Iterator[str]:
    """Yields the paths in a folder that a pattern finds: those that `glob.glob` finds in folders it can read.

    It leaves out the other folders, and a corpus would lack their files.

    Args:
        folder: the path of a folder, or "" for the current one.
        parts: the pattern, divided at the slashes.

    Raises:
        UserError: a folder cannot be read.
    """
    first, *rest = parts
    if first == "**":
        yield from _expanded(folder, rest or [""])
    for name, is_folder in _entries(folder, first):
        path = os.path.join(folder, name)
        if first == "**" and is_folder:
            yield from _expanded(path, parts)
        elif first != "**" and rest:
            yield from _expanded(path, rest)
        elif not rest:
            yield path


def _entries(folder: str, part: str) -> list[tuple[str, bool]]:
    """Returns the names in a folder that one part of a pattern finds, and whether each is a folder."""
    path = os.path.join(folder, part)
    try:
        if not glob.has_magic(part):
            os.lstat(path)
            return [(part, os.path.isdir(path))]
        with os.scandir(folder or os.curdir) as entries:
            return [(entry.name, _is_folder(entry)) for entry in entries if _match([entry.name], [part])]
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise _refusal(folder.rstrip("/") or os.path.abspath(folder), error) from None
    return []


def _is_folder(entry: os.DirEntry) -> bool:
    """Returns whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
    return False


def local_files(pattern: str) -> list[str]:
    """Returns the local files that a pattern finds, and those in the folders that it finds.

    Raises:
        UserError: a folder cannot be read.
    """
    return [file for path in _found(pattern) for file in _of_data_set(path, _files_under(path))]


def _of_data_set(folder: str, found: list[str]) -> list[str]:
    """Returns the files of a folder: only those of the data set, if it is one."""
    tables = columnar.of_data_set(found)
    if not tables:
        return found
    others = [file for file in found if not columnar.is_columnar(file) and not _describes(files.name(file))]
    if others:
        _log_left_out(folder, tuple(sorted(others)))
    return tables


def _describes(name: str) -> bool:
    """Returns whether a file beside Parquet and Arrow files describes them, by its name."""
    return name.startswith("_") or name.endswith((".json", ".md"))


@functools.cache  # the inputs of a command are listed more than once
def _log_left_out(folder: str, others: tuple[str, ...]) -> None:
    log(
        f"warning: of {folder}, only the Parquet and Arrow files are read, without "
        f"{some(map(files.name, others))}; to read others, give a pattern that finds them, in an --input of "
        "its own"
    )


def _files_under(path: str) -> list[str]:
    """Returns the files in a folder and in the folders in it; of a file, the file."""
    if not os.path.isdir(path):
        return [path]
    return [
        os.path.join(folder, name)
        for folder, names in _walk(path)
        for name in names
        if not name.startswith(".")
    ]


def _walk(path: str) -> Iterator[tuple[str, list[str]]]:
    """Yields a folder and the folders in it, each of them once, with the names of their files.

    Links to folders are followed last, so that no link changes the path of a file that needs none.

    Raises:
        UserError: a folder cannot be read.
    """
    visited: set[str] = set()
    starts = [path]
    for start in starts:
        for folder, folders, names in _readable(start):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if (real := os.path.realpath(folder)) in visited:
                folders.clear()
                continue
            visited.add(real)
            starts += filter(os.path.islink, (os.path.join(folder, name) for name in folders))
            yield folder, names


def _readable(path: str) -> Iterator[tuple[str, list[str], list[str]]]:
    try:
        yield from files.walk_folders(path)
    except OSError as error:
        raise _refusal(error.filename, error) from None


def _refusal(folder: str, error: OSError) -> UserError | StorageError:
    """Returns the error for a folder that cannot be read."""
    return file_error(
        f"{folder}: the folder cannot be read ({error.strerror}); expected one whose files are text; allow "
        "it to be read, or give patterns that leave it out",
        error,
    )


def remote_files(pattern: str) -> list[str]:
    """Returns the URLs of the files that a pattern of URLs finds, and those in the folders that it finds.

    Raises:
        UserError: they cannot be listed.
        StorageError: the file system failed.
    """
    try:
        system, bare = remote.file_system(pattern)
        found = []
        with remote.errors(pattern):
            for path in system.glob(bare):
                if not system.isdir(path):
                    found.append(path)
                    continue
                under = [file for file in system.find(path) if "/." not in file[len(path) :]]
                found += _of_data_set(path, [file for file in under if system.size(file) is not None])
    except OSError as error:
        message = f"can't list {pattern} ({error.strerror}); is it there, and allowed?"
        raise file_error(message, error) from None
    url, place = pattern.rstrip("/"), bare.rstrip("/")
    if place and url.endswith(place):
        # What the file system leaves out of its paths: the scheme, and of some the host.
        return [f"{url.removesuffix(place)}{path}" for path in found]
    return [f"{files.scheme(pattern)}://{path.lstrip('/')}" for path in found]
