"""Attention as Pallas kernels for TPU, in the layout of the projections.

Flash kernels are made for sequences that do not fit into vector memory, and need [B, N, L, D] with D padded
to 128 lanes. The copies for this layout cost more than the kernel itself. A row of BERT fits into vector
memory, and so does a segment of a row with local attention (`local_rows`). Long rows with global attention
need a flash kernel (`long_rows`), here without the copies. No [L, L] array leaves the chip. The backward pass
recomputes the probabilities from the three inputs and one number for each query, the binary logarithm of the
softmax's denominator (`blocks.attend`). The kernels add the biases of the inputs, so that their gradients,
which are sums over all tokens, are computed together with the gradients of the inputs. Computed separately,
they would need three more passes over HBM. The kernels also rotate queries and keys, because operations on
[B, L, N, D] would take longer than the kernel. Dropout of the probabilities is bitwise equal to `dropout`:
the mask is hashed from the element's position in both passes.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dropout import kernel_seeds
from bert_jax.kernels.tpu import local_rows, long_rows
from bert_jax.kernels.tpu.blocks import AttentionOptions


def attend(query, key, value, sequence_ids, causal, window, slopes, rate, dropout_key, biases, angles):
    """Computes `attention.attention` for arguments that `dispatch` allows for this kernel."""
    rows, _, heads, head_size = query.shape
    if biases is None:
        biases = [jnp.zeros(query.shape[2:], jnp.float32)] * 3
    options = AttentionOptions(
        head_size, causal, window, rate, slopes is not None, platform.interprets_kernels()
    )

    def kernel(query, key, value, sequence_ids, biases, seeds, heads, slopes, *tables):
        # A device with some of the heads hashes their masks from the head indices in the whole row.
        first_head = jnp.broadcast_to(heads[:1], (seeds.shape[0], 1))
        seeds = jnp.concatenate([seeds, first_head], axis=1)
        return _attend(options, query, key, value, biases, (seeds, sequence_ids, tables, slopes))

    tables = () if angles is None else _lane_tables(angles)
    by_head, by_row = ("batch", None, "heads"), ("batch", None)
    axes = (by_head, by_head, by_head, by_row, (None, "heads"), by_row, ("heads",), ("heads",))
    kernel = platform.on_each_device(kernel, (*axes, *[("batch", None, None)] * len(tables)), by_head)
    # Arrays are flattened before the kernel, because an array with as few lanes as one head would be padded
    # at its boundary.
    flat = [x.reshape(*x.shape[:2], -1) for x in (query, key, value)]
    biases = jnp.stack([bias.reshape(-1) for bias in biases])
    seeds = kernel_seeds(dropout_key if rate else None, rows)
    slopes = None if slopes is None else jnp.asarray(slopes)
    return kernel(*flat, sequence_ids, biases, seeds, jnp.arange(heads), slopes, *tables).reshape(query.shape)


def _lane_tables(angles):
    """Returns cosines and sines [B, L, 128] for a kernel that rotates 128 lanes, one or more heads.

    The kernel adds each lane times its cosine, and the lane of the plane's other coordinate times its sine.
    The sines of the first half of a head are negated.
    """
    cosine, sine = (x[:, :, 0] for x in angles)
    heads = dispatch.LANES // (2 * cosine.shape[-1])
    return jnp.tile(cosine, 2 * heads), jnp.tile(jnp.concatenate([-sine, sine], axis=-1), heads)


def _kernels(options, length):
    # For the longest row, the logits of more than four heads do not fit into v4's vector memory.
    fits = options.heads * length**2 <= 4 * dispatch.LONGEST_WHOLE_ROW**2
    return local_rows if options.window or (length <= dispatch.LONGEST_WHOLE_ROW and fits) else long_rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(options, query, key, value, biases, by_row):
    return _attend_fwd(options, query, key, value, biases, by_row)[0]


def _attend_fwd(options, *arguments):
    *arrays, biases, by_row = arguments
    out, saved = _kernels(options, arrays[0].shape[1]).forward(options, arrays, biases, by_row)
    return out, (*arguments, saved)


def _attend_bwd(options, residuals, gradient):
    *arrays, biases, by_row, saved = residuals
    kernels = _kernels(options, gradient.shape[1])
    *gradients, sums = kernels.backward(options, (*arrays, gradient), biases, by_row, *saved)
    return *gradients, jnp.sum(sums, axis=0), (None, None, (None,) * len(by_row[2]), None)


_attend.defvjp(_attend_fwd, _attend_bwd)
