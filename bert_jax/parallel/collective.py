"""Values that the processes of a run exchange on the host."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import StorageError, UserError

_BLOCK = 256  # bytes; each length of an array that is exchanged is a program to compile


def gather(content: bytes) -> list[bytes]:
    """Returns the content of each process, in the order of their indices.

    All processes of the run have to call it. Their contents may differ in length.
    """
    if jax.process_count() == 1:
        return [content]
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(content)))).reshape(-1)
    length = -(-int(sizes.max()) // _BLOCK) * _BLOCK
    padded = np.frombuffer(content.ljust(length, b"\0"), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def of_primary(value: Any) -> Any:
    """Returns the value of process 0, which has to be JSON-serializable, in all processes of the run.

    All processes have to call it. What the others give is not used.
    """
    if jax.process_count() == 1:
        return value
    return json.loads(gather(json.dumps(value).encode() if jax.process_index() == 0 else b"")[0])


def call_in_primary(choose: Callable[[], Any]) -> Any:
    """Returns in all processes of the run what `choose` returns in process 0; the others do not call it.

    All processes have to call this. Each may see other files in the same place, as on a file system that
    shows changes late, or while another run writes.

    Args:
        choose: returns a value that is JSON-serializable.

    Raises:
        UserError: `choose` raises it in process 0. All processes raise it.
        StorageError: as for UserError.
    """
    if jax.process_count() == 1:
        return choose()
    found: dict[str, Any] = {}
    if jax.process_index() == 0:
        try:
            found["value"] = choose()
        except (UserError, StorageError) as error:
            found["error"] = str(error), isinstance(error, UserError)
    found = of_primary(found)
    if "error" in found:
        message, is_mistake = found["error"]
        raise (UserError if is_mistake else StorageError)(message)
    return found["value"]
