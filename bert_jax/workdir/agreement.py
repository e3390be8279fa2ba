"""Whether the processes of a run have the same settings, inputs and work directory."""

from __future__ import annotations

import contextlib
import json
import os
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
from bert_jax.workdir import differences


def check_run(run: Mapping[str, Any], declared: Mapping[str, Field]) -> None:
    """Checks that all processes of the run, which have to call it, have the same `run` (see `WorkDir`).

    Raises:
        UserError: see `check_same`. Fields that may change at any time are not compared.
    """
    fields = config_fields.flatten(run)
    check_same({name: x for name, x in fields if differences.resume_rule(name, declared) != "free"})


def check_same(values: Mapping[str, Any]) -> None:
    """Checks that all processes of the run, which have to call it, have the same values.

    Args:
        values: JSON-serializable values of this process by their names.

    Raises:
        UserError: a process has other values than process 0. All processes raise it, and name both.
    """
    if jax.process_count() == 1:
        return
    found = [json.loads(each) for each in collective.gather(json.dumps(dict(values)).encode())]
    other = next((index for index, each in enumerate(found) if each != found[0]), None)
    if other is None:
        return
    first, second = found[0], found[other]
    # A value that a process does not have is None.
    pairs = {name: (first.get(name), second.get(name)) for name in sorted({*first, *second})}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    listed = differences.list_changes(differing, places=("in process 0", f"in process {other}"))
    raise UserError(f"{listed}; start all processes with the same flags and the same inputs")


def check_shared(directory: str, names: Sequence[str] = (), *, patience: float = 10.0) -> None:
    """Checks that all processes of the run, which have to call it, see the same directory.

    Process 0 writes an empty file with a random name there, and removes it when all have looked for it.

    Args:
        directory: the directory of this process, as a local path or a URL; in process 0, it exists.
        names: paths in the directory that process 0 sees, and that the others have to see, too.
            Those of the others are not used.
        patience: seconds for which a process looks, since shared file systems may show files late.

    Raises:
        UserError: a process does not see the directory of process 0. All processes raise it, and name it.
        StorageError: process 0 cannot write the file. All processes raise it.
    """
    if jax.process_count() == 1:
        return
    # Named as a temporary file is, so that it is removed later if process 0 is killed.
    own = f".shared.tmp-{owners.token()}-{uuid.uuid4().hex}"

    def write() -> list[str]:
        try:
            atomic.write_file(os.path.join(directory, own), b"", sync=False)
        except OSError as error:
            message = f"{directory}: cannot be written ({error.strerror or error}); choose another --workdir"
            raise file_error(message, error) from error
        return [own, *names]

    try:
        wanted = collective.call_in_primary(write)
        whys = (_look_for(os.path.join(directory, name), patience) for name in wanted)
        looked = [socket.gethostname(), next((why for why in whys if why is not None), None)]
        found = [json.loads(each) for each in collective.gather(json.dumps(looked).encode())]
    finally:
        if jax.process_index() == 0:
            with contextlib.suppress(OSError):
                files.remove(os.path.join(directory, own))
    blind = [f"process {n} on {host}{why}" for n, (host, why) in enumerate(found) if why is not None]
    if blind:
        raise UserError(
            f"{directory}, as process 0 on {found[0][0]} sees it, is not seen by {some(blind)}; expected a "
            "--workdir that all hosts share, a bucket or a directory of a network file system (docs/hosts.md)"
        )


def _look_for(file: str, patience: float) -> str | None:
    """Returns None if a file is seen within `patience` seconds; else the error, in parentheses, or ""."""
    deadline = time.monotonic() + patience
    while True:
        why = ""
        try:
            if files.exists_on_server(file):
                return None
        except OSError as error:
            why = f" ({error.strerror or error})"
        if time.monotonic() >= deadline:
            return why
        time.sleep(0.2)
