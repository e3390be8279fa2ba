"""Files that appear whole or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from typing import IO

from bert_jax.io import files


@contextlib.contextmanager
def replace_file(path: str, sync: bool = False) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path` for writing and renames it to `path` when the block ends without
    an error. For a path in an object store it is a local one, and is copied there.

    Args:
        path: the final name; an older file of that name is replaced in one step.
        sync: whether the bytes must be on the disk before the rename, so that they outlive a power failure.
    """
    if files.is_remote(path):
        with tempfile.NamedTemporaryFile() as file:
            yield file
            file.flush()
            files.upload(file.name, path)
        return
    # Processes of several machines or containers may have one id, and write to one disk.
    temporary = f"{path}.tmp-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        with open(temporary, "wb", buffering=1 << 20) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write_file(path: str, content: bytes, sync: bool = False) -> None:
    """Writes `content` to `path` atomically."""
    with replace_file(path, sync) as file:
        file.write(content)
