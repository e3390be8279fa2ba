"""What the Pallas kernels of attention take of a TPU: rows of a step, vector memory, operations and bytes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from etils import epy

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import LONGEST_WHOLE_ROW
from bert_jax.kernels.tpu.blocks import How

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl

_LARGEST_STEP = 1024  # tokens


def has_room() -> bool:
    """Returns whether the TPU that is being traced for has more vector memory than v4."""
    return platform.vector_memory() > platform.SMALL_VECTOR_MEMORY


def memory_limit(mebibytes: int) -> int | None:
    """Returns how many bytes of vector memory a kernel may use, where the TPU has room for them.

    That is None for the compiler's default elsewhere. The program around a kernel cannot use these bytes
    meanwhile.
    """
    return mebibytes * 2**20 if has_room() else None


def rows_a_step(batch: int, length: int, heads: int) -> int:
    """Returns the number of rows that a step of the grid computes.

    Short rows are grouped, because the overhead of a step would otherwise exceed its work. v4's vector memory
    has room for the logits of two heads of the longest row that is computed whole.

    Args:
        batch: the number of rows, of which the result is a divisor.
        length: the number of tokens of a row.
        heads: the number of heads of a row that a step computes.
    """
    logits = (4 if has_room() else 2) * LONGEST_WHOLE_ROW**2
    rows = max(1, min(_LARGEST_STEP // length, logits // (heads * length**2)))
    while batch % rows:
        rows -= 1
    return rows


def cost(how: How, arrays: Sequence[jax.Array], keys: int, is_backward: bool = False) -> pl.CostEstimate:
    """Returns what a kernel costs.

    Args:
        how: the options.
        arrays: arrays [B, L, N D] that it reads.
        keys: keys that a query is multiplied by.
        is_backward: whether it is the backward kernel, which has five products by D of each pair of a query
            and a key, per head, and three results of this shape, in place of two products and one result.
    """
    batch, length, width = arrays[0].shape
    pairs = batch * length * keys
    products, written = (5, 3) if is_backward else (2, 1)
    return pl.CostEstimate(
        flops=2 * products * width * pairs,
        transcendentals=width // how.head_size * pairs,
        bytes_accessed=(len(arrays) + written) * arrays[0].size * arrays[0].dtype.itemsize,
    )
