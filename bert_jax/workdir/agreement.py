"""Whether the processes of a run have the same settings and inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax.errors import UserError
from bert_jax.parallel import collective


def check_same(values: Mapping[str, Any], list_changes: Callable[..., str]) -> None:
    """Checks that all processes of the run, which have to call it, have the same values.

    Args:
        values: JSON-serializable values of this process by their names.
        list_changes: `run_directory.list_changes`. A value that a process does not have is None there.

    Raises:
        UserError: a process has other values than process 0. All processes raise it, and name both.
    """
    if jax.process_count() == 1:
        return
    content = json.dumps(dict(values), sort_keys=True).encode()
    digests = collective.gather(hashlib.sha256(content).digest())
    other = next((index for index, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return
    found = collective.gather(content)
    first, second = json.loads(found[0]), json.loads(found[other])
    pairs = {name: (first.get(name), second.get(name)) for name in sorted({*first, *second})}
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    listed = list_changes(differing, places=("in process 0", f"in process {other}"))
    raise UserError(f"{listed}; start all processes with the same flags and the same inputs")
