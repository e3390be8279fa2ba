"""Checks and locks the output directory of a build, so that only one process at a time writes to it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from typing import Any

import bert_jax
from bert_jax.data import manifests
from bert_jax.errors import UserError
from bert_jax.io import atomic, files
from data_pipelines.cleaning import report
from data_pipelines.settings import difference

UNFINISHED = "unfinished"  # the folder in the output directory from which an interrupted build continues
SETTINGS = "settings.json"  # in it


def finished(directory: str, settings: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
    """Returns the manifest of finished records with these settings.

    Args:
        directory: the output directory.
        settings: the settings of the build.
        overwrite: whether records with other settings are removed.

    Returns:
        The manifest, or None if there are no such records or a file is missing or truncated; in that case
        all records are removed.

    Raises:
        UserError: there are records with other settings, and `overwrite` is not set.
    """
    if not files.exists(os.path.join(directory, manifests.FILE)):
        return None
    manifest = manifests.read(directory)
    differing = difference(settings, manifest)
    if differing and overwrite:
        _remove_records(directory)
        return None
    if differing:
        raise UserError(
            f"{directory} holds other records ({differing}): --overwrite replaces them, or choose another "
            "--output_dir"
        )
    files.remove_tree(os.path.join(directory, UNFINISHED))
    for split in manifest["splits"].values():
        for file in split["files"]:
            path = os.path.join(directory, file["name"])
            if not files.exists(path) or files.size(path) != file["bytes"]:
                _remove_records(directory)  # the build makes them again
                return None
    return manifest


def _remove_records(directory: str) -> None:
    """Removes finished records, the manifest first, since without it no one takes the rest for finished."""
    files.remove(os.path.join(directory, manifests.FILE), missing_ok=True)
    for name in files.names(directory):
        if ".tfrecord" in name or name == report.REPORT:
            files.remove(os.path.join(directory, name))


@contextlib.contextmanager
def claimed(directory: str, settings: dict[str, Any], overwrite: bool = False) -> Iterator[str]:
    """Creates and locks the folder for unfinished work in the output directory, and yields its path.

    Args:
        directory: the output directory, which is created if it is missing.
        settings: the settings of the build.
        overwrite: whether unfinished work with other settings is removed.

    Raises:
        UserError: the directory is not writable, another process writes to it or has just finished it, it
            holds record files without a manifest, or its unfinished work has other settings.
    """
    unfinished = os.path.join(directory, UNFINISHED)
    settings = settings | {"made_by": f"bert-jax {bert_jax.__version__}"}
    path = os.path.join(unfinished, SETTINGS)
    try:
        begun = files.is_directory(unfinished)
        files.make_directory(unfinished)
        # An object store does not support locks.
        local = not files.is_remote(directory)
        lock: Any = open(os.path.join(unfinished, "lock"), "w") if local else contextlib.nullcontext()  # noqa: SIM115
    except OSError as error:
        raise UserError(f"cannot write to --output_dir={directory}: {error.strerror}") from error
    with lock:
        try:
            if local:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The lock file may have been deleted with the folder of a build that finished.
                if not os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name)):
                    raise FileNotFoundError(lock.name)
        except (BlockingIOError, FileNotFoundError):
            raise UserError(
                f"another `bert-jax data` is writing to {directory}: wait for it, or stop it"
            ) from None
        if files.exists(os.path.join(directory, manifests.FILE)):  # finished since the call of `finished`
            files.remove_tree(unfinished)
            raise UserError(f"another `bert-jax data` has just finished {directory}: run the command again")
        stray = [name for name in files.names(directory) if ".tfrecord" in name]
        if stray and not begun:
            files.remove_tree(unfinished)
            raise UserError(
                f"{directory} holds {stray[0]} and no {manifests.FILE}: choose an empty --output_dir"
            )
        if local:  # partial files of killed processes
            for name in files.names(unfinished):
                if ".tmp-" in name:
                    files.remove(os.path.join(unfinished, name))
        differing = difference(settings, json.loads(files.read(path))) if files.exists(path) else ""
        if differing and not overwrite:
            raise UserError(
                f"{directory} holds the unfinished work of another run ({differing}): give the same flags to "
                "finish it, or --overwrite to begin anew"
            )
        if differing:
            _remove_records(directory)  # those that the other run had moved there
            for name in files.names(unfinished):
                stale = os.path.join(unfinished, name)
                if name != "lock":
                    (files.remove_tree if files.is_directory(stale) else files.remove)(stale)
        if not files.exists(path):
            atomic.write_file(path, json.dumps(settings).encode())
        yield unfinished
