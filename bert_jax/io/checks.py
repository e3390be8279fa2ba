"""Checks the paths that a user gave before anything is computed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from bert_jax.errors import UserError, file_error, reading
from bert_jax.io import atomic, files, remote
from bert_jax.io.wording import alternatives

PICTURES = (".png", ".pdf", ".svg")


def check_free(path: files.PathLike, overwrite: bool, flag: str = "--output") -> None:
    """Raises a UserError if an output exists, except an empty directory, and may not be replaced.

    Pictures and reports, which take seconds, are always replaced. Outputs that can be resumed are continued.
    """
    if overwrite or not files.exists(path) or (files.is_directory(path) and not files.names(path)):
        return
    raise UserError(f"{flag}={path} exists already; --overwrite replaces it")


def check_output_file(path: files.PathLike, suffixes: Sequence[str] = (), *, overwrite: bool = True) -> None:
    """Creates the directory of --output, a file; UserError if it cannot be written or has another suffix."""
    if suffixes and files.suffix(path) not in suffixes:
        raise UserError(f"--output={path}: expected a name ending in {alternatives(suffixes)}")
    try:
        if files.is_directory(path):
            raise IsADirectoryError("it is a directory")
        check_free(path, overwrite)
        files.make_directory(files.parent(path))
        if not atomic.is_written_in_place(os.fspath(path)):
            # Only a write shows that a bucket exists, or that a file may be created next to the old one.
            target = path if files.is_remote(path) else os.path.realpath(path)
            probe = os.path.join(files.parent(target), f".bert_jax-{uuid.uuid4().hex}")
            atomic.write_file(probe, b"", sync=False)
            files.remove(probe)
    except OSError as error:
        raise file_error(f"--output={path}: cannot be written ({error.strerror or error})", error) from error


def check_input(path: files.PathLike) -> None:
    """Raises a UserError unless `path` is a file; a StorageError if the disk or the bucket failed."""
    with reading(path):
        if not files.is_file(path):
            raise UserError(f"{path}: no such file")


def check_checkpoint_place(path: files.PathLike) -> None:
    """Raises a UserError for a path that orbax and TensorStore, which write checkpoints, cannot access."""
    if files.scheme(path) not in ("", "gs", "s3"):
        raise UserError(f"{path}: checkpoints must be at a local path, gs:// or s3://")
    if files.is_remote(path):
        remote.file_system(path)  # its error says how to install a missing client
