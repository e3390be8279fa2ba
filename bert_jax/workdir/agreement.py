"""Whether two runs, or the processes of one run, have the same settings, inputs and work directory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bert_jax.errors import UserError, file_error
from bert_jax.io import atomic, files, owners
from bert_jax.io.wording import some
from bert_jax.parallel import collective
from bert_jax.settings import config_fields
from bert_jax.settings.config_fields import Field
from bert_jax.settings.removed_fields import REMOVED

# The entries of config.json outside of `config` that may change when a run resumes, and those that never can,
# because they determine the meaning of checkpoints. The fields of `config` declare it themselves.
_FREE = (
    "command_line",
    "head",  # follows from the task; runs of older versions have a wrong one for questions
    "vocabulary.file",
    "vocabulary.path",
)
_FIXED = ("vocabulary.digest",)
_DIGEST = re.compile("[0-9a-f]{32,}")
_MOST_LISTED = 4  # differences in a message
# Descriptions of the digests in config.json, for messages.
_INPUTS = {
    "records.fingerprint": "the digest of the records in --config.data.dir",
    "vocabulary.digest": "the digest of the vocabulary",
}


def resume_rule(name: str, declared: Mapping[str, Field]) -> str:
    """Returns the `Field.resume` of an entry of config.json."""
    if name in _FREE or name in _FIXED:
        return "free" if name in _FREE else "fixed"
    field = declared.get(name.removeprefix("config."))
    return field.resume if field else "same"


def drop_removed(config: dict[str, Any]) -> None:
    """Deletes the fields of a recorded config that no longer exist and have the default that they had."""
    recorded = dict(config_fields.flatten(config))
    for name, default in REMOVED.items():
        if name in recorded and recorded[name] == default:
            *groups, last = name.split(".")
            group = config
            for each in groups:
                group = group[each]
            del group[last]


def check_known(old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Raises UserError if a recorded config has a field that this version of bert_jax does not have.

    Args:
        old: the config in a work directory, after `drop_removed`.
        new: the config of the run that resumes.
        declared: the fields of the config by their dotted names.
    """
    known = {*declared, *dict(config_fields.flatten(new))}
    for name, value in config_fields.flatten(old):
        if name not in known:
            raise UserError(
                f"config.{name}={_short(value)} of the run does not exist in this version of bert-jax, which "
                "cannot resume it; use the version that started it, or choose another --workdir"
            )


def changes(
    old: Mapping[str, Any], new: Mapping[str, Any], declared: Mapping[str, Field]
) -> dict[str, tuple[Any, Any]]:
    """Compares the run in a work directory with the one that is to resume it.

    A field of `config` that the older run lacks was added by a later version of bert_jax: that run had its
    default. Other entries that only one of them has are ignored.

    Returns:
        {dotted name: (old value, new value)} of what differs.
    """
    before = {f"config.{name}": field.default for name, field in declared.items()}
    before |= dict(config_fields.flatten(old))
    return {
        name: (before[name], value)
        for name, value in config_fields.flatten(new)
        if name in before and before[name] != value
    }


def list_changes(
    differing: Mapping[str, tuple[Any, Any]], places: tuple[str, str] = ("there", "here")
) -> str:
    """Returns the result of `changes` as text; those after the first four are counted."""
    there, here = places
    listed = [
        f"{_INPUTS.get(name, name.removeprefix('config.'))} is {_short(old)} {there} and {_short(new)} {here}"
        for name, (old, new) in differing.items()
    ]
    more = [f"and {len(listed) - _MOST_LISTED} more differ"] if len(listed) > _MOST_LISTED else []
    return ", ".join(listed[:_MOST_LISTED] + more)


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) and _DIGEST.fullmatch(value) else repr(value)


def check_run(run: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Checks that all processes of the run, which have to call it, have the same `run` (see `WorkDir`).

    Raises:
        UserError: a process has other values than process 0, in entries that may not change at any time. All
            processes raise it, and name both.
    """
    if jax.process_count() == 1:
        return
    fields = config_fields.flatten(run)
    values = {name: x for name, x in fields if resume_rule(name, declared) != "free"}
    runs = [json.loads(each) for each in collective.gather(json.dumps(values).encode())]
    other = next((index for index, each in enumerate(runs) if each != runs[0]), None)
    if other is None:
        return
    # A value that a process does not have is None.
    pairs = {name: (runs[0].get(name), runs[other].get(name)) for name in sorted({*runs[0], *runs[other]})}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    listed = list_changes(differing, places=("in process 0", f"in process {other}"))
    raise UserError(f"{listed}; start all processes with the same flags and the same inputs")


def check_shared(directory: str, names: Sequence[str] = (), *, patience: float = 10.0) -> None:
    """Checks that all processes of the run, which have to call it, see the same directory.

    Otherwise each would write its part of a checkpoint to another disk. Process 0 writes an empty file with a
    random name there, and removes it when all have looked for it.

    Args:
        directory: the directory of this process, as a local path or a URL; in process 0, it exists.
        names: paths in the directory that process 0 sees, and that the others have to see, too.
        patience: seconds for which a process looks, since shared file systems may show files late.

    Raises:
        UserError: a process does not see the directory of process 0. All processes raise it, and name it.
        StorageError: process 0 cannot write the file. All processes raise it.
    """
    if jax.process_count() == 1:
        return
    # Named as a temporary file is, so that it is removed later if process 0 is killed.
    probe = f".shared.tmp-{owners.token()}-{uuid.uuid4().hex}"

    def write() -> list[str]:
        try:
            atomic.write_file(os.path.join(directory, probe), b"", sync=False)
        except OSError as error:
            message = f"{directory}: cannot be written ({error.strerror or error}); choose another --workdir"
            raise file_error(message, error) from error
        return [probe, *names]

    try:
        expected = collective.call_in_primary(write)
        is_seen = all(_appears(os.path.join(directory, name), patience) for name in expected)
        seen = [
            json.loads(x) for x in collective.gather(json.dumps([socket.gethostname(), is_seen]).encode())
        ]
    finally:
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                files.remove(os.path.join(directory, probe))
    if blind := [f"process {n} on {host}" for n, (host, sees) in enumerate(seen) if not sees]:
        raise UserError(
            f"{directory}, as process 0 on {seen[0][0]} sees it, is not seen by {some(blind)}; expected a "
            "--workdir that all hosts share, a bucket or a directory of a network file system (docs/hosts.md)"
        )


def _appears(file: str, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError):
            if files.exists_on_server(file):
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
