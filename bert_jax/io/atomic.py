"""Writes files atomically: under a unique temporary name, flushed to the disk, then renamed.

All files of the project are written here, except logs that are appended to and files that libraries write
themselves.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from typing import IO, Any

from bert_jax.errors import UserError
from bert_jax.io import files, fonts, owners, progress, scratch

_TEMPORARY = ".tmp-"  # NAME.tmp-OWNER-RANDOM
_REPLACED = ".replaced-"  # NAME.replaced-OWNER-RANDOM
_NAME_BYTES = 150  # of the final name, in that of a temporary file
_cleaned: set[str] = set()  # directories in which this process has removed leftovers of dead processes


@contextlib.contextmanager
def replace_file(path: files.PathLike, sync: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file for writing and renames it to `path` when the block ends without an error.

    The temporary file lies next to `path`. For a URL it is a local file, which is uploaded at the end.

    Args:
        path: the final name. An existing file of that name is replaced in one step. Of a symbolic link, the
            file that it refers to is. A device or a pipe, such as /dev/stdout, is written to directly.
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
    if is_written_in_place(path):
        with open(path, "wb") as file:
            yield file
        return
    target = os.path.realpath(path)
    directory = os.path.dirname(target)
    if directory not in _cleaned:
        _cleaned.add(directory)
        scratch.remove_leftovers(directory, infix=_TEMPORARY)
    temporary = os.path.join(directory, _unique(os.path.basename(target), _TEMPORARY))
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            error.filename = path  # the name that the user knows
        raise
    if sync:
        _sync(directory)


def is_written_in_place(path: str) -> bool:
    """Returns whether `replace_file` writes to a local path itself: to a device or a pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _unique(name: str, infix: str) -> str:
    """Returns a unique name: `name`, which is cut if it is long, `infix`, and what identifies the process."""
    return f"{_begin(name)}{infix}{owners.token()}-{os.urandom(4).hex()}"


def _begin(name: str) -> str:
    """Returns the beginning of a name, which the names of its temporary files share."""
    # A name may have 255 bytes in all.
    return os.fsencode(name)[:_NAME_BYTES].decode(errors="ignore")


def final_name(name: str) -> str:
    """Returns what a temporary file of `replace_file` is renamed to; the names of other files as they are."""
    return name.partition(_TEMPORARY)[0]


def sync_tree(path: files.PathLike) -> None:
    """Flushes the files under a local directory, and its name, to the disk; does nothing for a URL.

    Raises:
        OSError: a file cannot be flushed.
    """
    if files.is_remote(path):
        return
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
    _sync(files.parent(path))


def _sync(path: str) -> None:
    """Flushes the content of a local file, or the entries of a local directory, to the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not os.path.isdir(path):  # some network file systems do not support it for directories
            raise


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
    to stay: their content is. After an error, it is as it was before. If the process is killed between two
    renames, the old content is in NAME.replaced-*: beside the directory, or in one that has to stay. It is
    kept until `restore_directory` gives it its name back, or until another call replaces the new content. Of
    a symbolic link, the directory that it refers to is replaced. The content for a URL is uploaded at the
    end, file by file; after an error, what was not there before is removed.
    """
    path = os.fspath(path)
    if files.is_remote(path):
        with scratch.directory() as made:
            yield made
            old = files.walk(path)
            try:
                copy_directory(made, path)
            except BaseException:
                with contextlib.suppress(OSError):  # the bucket may be unreachable
                    for name in sorted({*files.walk(made)}.difference(old)):
                        files.remove(os.path.join(path, name), missing_ok=True)
                raise
        return
    path = os.path.realpath(path)
    stays = _has_to_stay(path)
    folder = path if stays else files.parent(path)
    files.make_directory(folder)
    with scratch.directory(folder) as temporary:
        made = os.path.join(temporary, "out")
        os.mkdir(made)
        yield made
        if not os.path.isdir(path):
            os.rename(made, path)
            return
        replaced = os.path.join(folder, _unique(files.name(files.absolute(path)), _REPLACED))
        if stays:
            _replace_entries(path, made, replaced, kept=os.path.basename(temporary))
        else:
            _rename([(path, replaced), (made, path)])
        os.rename(replaced, os.path.join(temporary, "replaced"))  # which is removed with it
        if not stays:
            # Of a process that was killed once the new content had its name; it was to be removed then.
            scratch.remove_leftovers(folder, prefix=_replaced_prefix(path), of_others=False)


def restore_directory(path: files.PathLike) -> None:
    """Restores a directory if the process that was replacing it was killed, and logs that.

    `replace_directory` renames the old content before it renames the new content to `path`. If nothing is at
    `path`, the process was killed in between. URLs are left as they are.

    Raises:
        UserError: it cannot be restored without knowing what was in it, or that the process is dead; the
            message says what to do.
    """
    path = os.fspath(path)
    if files.is_remote(path):
        return
    path = os.path.realpath(path)
    if os.path.lexists(path):
        for replaced in _unfinished(path, path):
            raise UserError(
                f"{path}: a command was killed while it replaced the content; expected that {replaced} is "
                "gone, which has the old one: move its entries back over those of the same name, or, if the "
                "new content is complete, remove it"
            )
        return
    for replaced in _unfinished(files.parent(path), path):
        if owners.is_dead(replaced) is None:
            raise UserError(
                f"{path}: a command on another machine renamed it to {replaced} in order to replace it; "
                "expected that it is there again; if that command was killed, rename it back"
            )
        with contextlib.suppress(OSError):  # another process may have restored it first
            os.rename(replaced, path)
            progress.log(
                f"warning: {path} was missing, because a command was killed while it replaced it; "
                "the old content is restored"
            )


def _unfinished(folder: str, path: str) -> list[str]:
    """Returns the paths, in a folder, of content that a process which is not known to be alive replaced."""
    prefix = _replaced_prefix(path)
    try:
        found = sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    except OSError:  # not a directory, or not to be listed
        return []
    return [os.path.join(folder, name) for name in found if owners.is_dead(name) is not False]


def _replaced_prefix(path: str) -> str:
    return _begin(files.name(files.absolute(path))) + _REPLACED


def _replace_entries(path: str, made: str, replaced: str, kept: str) -> None:
    """Replaces the entries of `path` except `kept` by those of `made`, and moves them to a new directory."""
    old = [name for name in os.listdir(path) if name != kept]
    os.mkdir(replaced)
    try:
        _rename([*_moves(old, path, replaced), *_moves(os.listdir(made), made, path)])
    except BaseException:
        with contextlib.suppress(OSError):  # an entry that could not be moved back stays there
            os.rmdir(replaced)
        raise


def _moves(names: Sequence[str], source: str, target: str) -> list[tuple[str, str]]:
    """Returns (old path, new path) of the entries of a directory that are moved to another."""
    return [(os.path.join(source, name), os.path.join(target, name)) for name in names]


def _rename(moves: Sequence[tuple[str, str]]) -> None:
    """Renames (old path, new path) one after the other; after an error, undoes those that were renamed."""
    with contextlib.ExitStack() as undo:
        for old, new in moves:
            os.rename(old, new)
            undo.callback(os.rename, new, old)
        undo.pop_all()


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
