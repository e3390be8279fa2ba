"""Paths that a user gave, checked before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from bert_jax.errors import UserError, check_installed, file_error
from bert_jax.io import atomic, files, owners

PICTURES = (".png", ".pdf", ".svg")


def check_free(path: files.PathLike, overwrite: bool, flag: str = "--output") -> None:
    """Refuses an output that exists, unless it may be replaced.

    What takes long to make (a vocabulary, records, a converted model, predictions, embeddings) is replaced
    only when --overwrite says so. Pictures, which are made anew in seconds, are replaced. What resumes, such
    as a work directory, goes on.

    Args:
        path: of a file or a directory. An empty directory is as good as none.
        overwrite: whether it may be replaced.
        flag: that gave the path.

    Raises:
        UserError: it exists and may not be replaced.
    """
    if overwrite or not files.exists(path) or (files.is_directory(path) and not files.names(path)):
        return
    raise UserError(f"{flag}={path} exists already; --overwrite replaces it, or choose another {flag}")


def check_picture(path: files.PathLike, flag: str = "--output") -> None:
    """Refuses a picture that could not be drawn in the end: `check_output`, and matplotlib is installed."""
    check_output(path, PICTURES, flag)
    check_installed("matplotlib", "plots", f"{flag}={path}")


def check_output(
    path: files.PathLike, suffixes: Sequence[str] = (), flag: str = "--output", *, overwrite: bool = True
) -> None:
    """Refuses a file that could not be written in the end, and makes the directory that it goes to.

    A URL is written to and cleared again: nothing else tells whether a bucket is there and may be written.

    Args:
        path: what the flag was given.
        suffixes: those of the formats that there are; none where any name will do.
        flag: for the message.
        overwrite: whether a file that exists may be replaced; see `check_free`.

    Raises:
        UserError: Another suffix, a file that exists and may not be replaced, a directory, or a place that
            cannot be written. StorageError: The disk or the bucket failed.
    """
    if suffixes and files.suffix(path) not in suffixes:
        raise UserError(f"{flag}={path}: expected a name ending in {_either(suffixes)}")
    try:
        if files.is_directory(path):
            raise UserError(f"{flag}={path}: is a directory; expected a file, such as {path}/NAME")
        check_free(path, overwrite, flag)
        files.make_directory(files.parent(path))
        if files.is_remote(path):
            probe = f"{path}.tmp-{owners.token()}"
            atomic.write_file(probe, b"", sync=False)
            files.remove(probe)
        elif not os.access(path if os.path.exists(path) else files.parent(path), os.W_OK):
            raise UserError(f"{flag}={path}: cannot be written there; choose another place")
    except OSError as error:
        message = f"{flag}={path}: cannot be written there ({error.strerror or error})"
        raise file_error(message, error) from error


def check_input(path: files.PathLike, expected: str) -> None:
    """Raises UserError unless a file is there; `expected` is what it should hold."""
    if not files.exists(path):
        raise UserError(f"{path}: no such file")
    if files.is_directory(path):
        raise UserError(f"{path}: is a directory, expected a {expected} file")


def check_checkpoint_place(path: files.PathLike) -> None:
    """Raises UserError for a URL that orbax and TensorStore, which write checkpoints, have no client for."""
    if files.scheme(path) not in ("", "gs", "s3"):
        raise UserError(
            f"{path}: checkpoints can be on a disk, gs:// or s3://, and nowhere else; copy the directory "
            "there first, or choose another"
        )
    if files.is_remote(path):
        files.file_system(path)  # which says how to install what is missing


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
