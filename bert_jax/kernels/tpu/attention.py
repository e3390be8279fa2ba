"""Attention as Pallas kernels for TPU, in the layout of the projections.

Flash kernels are made for sequences that do not fit into vector memory, and need [B, N, L, D] with D padded
to 128 lanes, which costs more in copies around the kernel than the kernel itself. A row of BERT does fit
(`whole_rows`), and so does a segment of a row whose tokens attend to their neighbors alone (`local_rows`);
long rows whose tokens attend to all others need a flash kernel (`long_rows`), here without the copies. No
[L, L] array leaves the chip, and the backward pass computes the probabilities again from the three inputs and
one number for each query, the binary logarithm of the softmax's denominator (`blocks.results`). The biases of
the inputs are added here, so that their gradients, which are sums over all tokens, are computed together with
the gradients of the inputs: separately they would be three more passes over HBM. Queries and keys are turned
here, too, for which operations on [B, L, N, D] would take longer than the kernel. Dropout of the
probabilities is bitwise equal to `dropout`: the mask is hashed from the element's position in both passes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, segments
from bert_jax.kernels.dispatch import AttentionCase
from bert_jax.kernels.tpu import local_rows, long_rows, whole_rows
from bert_jax.kernels.tpu.blocks import How


def row_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sequence_ids: jax.Array,
    biases: jax.Array,
    words: jax.Array,
    tables: Sequence[jax.Array] = (),
    slopes: jax.Array | None = None,
    *,
    head_size: int,
    causal: bool = False,
    window: int = 0,
    rate: float = 0.0,
    interpret: bool = False,
) -> jax.Array:
    """Returns scaled dot-product attention within each sequence of a row.

    Args:
        query: [B, L, N D], float32 or bfloat16, of a shape that `dispatch` allows for this kernel.
        key: as `query`.
        value: as `query`.
        sequence_ids: int32 [B, L]; tokens attend to each other where their ids are equal.
        biases: float32 [3, N D], added to query, key and value.
        words: int32 [B, 5] for dropout: those of `dropout.kernel_words`, and the index of the first head of
            this device in the whole row.
        tables: those of `rotary.lane_tables` for 128 lanes, by which query and key are turned after their
            biases are added; none to turn nothing.
        slopes: float32 [N], see `bert_jax.kernels.attention.attention`.
        head_size: D.
        causal: whether a token attends to no later token.
        window: a token attends to the tokens at most this far to each side and to itself; 0 for all.
        rate: dropout rate of the probabilities.
        interpret: whether to run without a TPU, which is slow.

    Returns:
        [B, L, N D] in the dtype of the query. Softmax is computed in float32.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    _, length, width = query.shape
    case = AttentionCase(length=length, heads=width // head_size, head_size=head_size, window=window)
    dispatch.check_case("attention", "pallas", case)
    how = How(head_size, causal, window, rate, slopes is not None, interpret)
    return _attend(how, query, key, value, biases, (words, sequence_ids, tuple(tables), slopes))


def keys_in_reach(length: int, window: int) -> int:
    """Returns how many keys of a row the kernel multiplies by a query: with a window, some blocks of them."""
    return segments.divide(length, window).span if window else length


def _kernels(how, length):
    if how.window:
        return local_rows
    # The logits of more than four heads of the longest such row do not fit into v4's vector memory.
    fits = how.heads * length**2 <= 4 * dispatch.LONGEST_WHOLE_ROW**2
    return whole_rows if length <= dispatch.LONGEST_WHOLE_ROW and fits else long_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how, query, key, value, biases, by_row):
    return _attend_fwd(how, query, key, value, biases, by_row)[0]


def _attend_fwd(how, *arguments):
    *arrays, biases, by_row = arguments
    out, kept = _kernels(how, arrays[0].shape[1]).forward(how, arrays, biases, by_row)
    return out, (*arguments, kept)


def _attend_bwd(how, residuals, gradient):
    *arrays, biases, by_row, kept = residuals
    kernels = _kernels(how, gradient.shape[1])
    *gradients, sums = kernels.backward(how, (*arrays, gradient), biases, by_row, *kept)
    return *gradients, jnp.sum(sums, axis=0), (None, None, (None,) * len(by_row[2]), None)


_attend.defvjp(_attend_fwd, _attend_bwd)
