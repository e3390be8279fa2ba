"""Exchange of values between the processes of a run, on the host."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.errors import ClusterError, StorageError, UserError

_BLOCK = 256  # bytes; each length of an array that is exchanged is a program to compile
_KINDS = {"UserError": UserError, "StorageError": StorageError}
_RAISED_IN_ALL = "All processes of the run have raised this error."


def gather(content: bytes) -> list[bytes]:
    """Returns the content, of any length, of each process, in the order of their indices.

    All processes of the run have to call it. If one has failed, it raises its error; see `failing_together`.
    """
    return [content] if jax.process_count() == 1 else _exchange(content)


def _exchange(content: bytes, failed: bool = False) -> list[bytes]:
    size = np.int32(~len(content) if failed else len(content))
    sizes = np.asarray(multihost_utils.process_allgather(size)).reshape(-1)
    lengths = np.where(sizes < 0, ~sizes, sizes)
    padded = np.frombuffer(content.ljust(-(-int(lengths.max()) // _BLOCK) * _BLOCK, b"\0"), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    contents = [row[:length].tobytes() for row, length in zip(rows, lengths, strict=True)]
    if failed or sizes.min() >= 0:
        return contents
    number = int(np.argmax(sizes < 0))
    name, message = json.loads(contents[number])
    error = _KINDS.get(name, ClusterError)(f"process {number}: {message}" if number else message)
    error.add_note(_RAISED_IN_ALL)
    raise error


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Ends the block in all processes of a run if one process raises an error. The others would hang.

    The others raise the error, as UserError, StorageError or else ClusterError, at their next exchange or at
    the end of the block. All processes have to enter the block. Inside it, they may only communicate through
    the functions of this module.
    """
    try:
        yield
        gather(b"end")
    except Exception as error:
        _tell(error)
        raise


def _tell(error: Exception) -> None:
    if jax.process_count() > 1 and _RAISED_IN_ALL not in getattr(error, "__notes__", ()):
        kind = next((name for name, each in _KINDS.items() if isinstance(error, each)), "")
        _exchange(json.dumps([kind, str(error)]).encode(), failed=True)
        error.add_note(_RAISED_IN_ALL)


def call_in_primary(choose: Callable[[], Any]) -> Any:
    """Calls `choose` in process 0 only, and returns its JSON-serializable result in all processes of the run.

    All processes have to call this function. It is for choices that depend on files, which processes may see
    differently: some file systems show changes late, and another run may be writing. If `choose` raises an
    error in process 0, the others also raise it; see `failing_together`.
    """
    if jax.process_count() == 1:
        return choose()
    content = b""
    if jax.process_index() == 0:
        try:
            content = json.dumps(choose()).encode()
        except Exception as error:
            _tell(error)
            raise
    return json.loads(gather(content)[0])
