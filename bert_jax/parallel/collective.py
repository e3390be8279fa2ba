"""Values that the processes of a run exchange on the host."""

from __future__ import annotations

import jax
import numpy as np
from jax.experimental import multihost_utils


def gather(content: bytes) -> list[bytes]:
    """Returns the content of each process, in the order of their indices.

    All processes of the run have to call it. Their contents may differ in length.
    """
    if jax.process_count() == 1:
        return [content]
    sizes = np.asarray(multihost_utils.process_allgather(np.int32(len(content)))).reshape(-1)
    padded = np.frombuffer(content.ljust(int(sizes.max()), b"\0"), np.uint8)
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]
