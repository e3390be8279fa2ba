"""The kernels of `residual` for TPU, in Pallas.

At the end of a half XLA needs two passes over HBM in the forward direction, one for the sum with its
statistics and one for the normalized rows. At its start, XLA writes x in float32 for the statistics, reads it
twice, and adds the two gradients of x, that of the sum and that of the norm, in a pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import RESIDUAL_TOKENS
from bert_jax.kernels.dropout import keep_by_parts, line_words, place_words, threshold
from bert_jax.kernels.layer_norm import normalize, normalize_bwd
from bert_jax.kernels.tpu.lanes import in_rows

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_LARGEST = 256 * 1024  # elements of a block


def run_by_rows(
    kernel: Callable[..., None],
    inputs: Sequence[jax.Array],
    arrays: Sequence[jax.Array],
    *,
    results: int,
    sums: int = 0,
    interpret: bool = False,
) -> list[jax.Array]:
    """Runs a kernel over a grid of (rows, blocks of tokens).

    Args:
        kernel: function of references to `inputs`, a block of each of `arrays`, and a block of each result.
        inputs: the parameters, float32 [P, F], which the kernel is given whole; before them the words of the
            rows for dropout, [B, 1, 4], if it has dropout.
        arrays: [B, L, F] each.
        results: number of results of the shape of the first of `arrays`.
        sums: number of sums of each step, for one more result; 0 for none.
        interpret: whether to run without a TPU, which is slow.

    Returns:
        The results; with `sums` the last one is float32 [steps, sums, F].
    """
    rows, length, features = arrays[0].shape
    tokens = _tokens_a_step(length, features)
    parts = length // tokens
    block = pl.BlockSpec((1, tokens, features), lambda row, part: (row, part, 0))
    *words, parameters = inputs
    of_inputs = [
        pl.BlockSpec((1, 1, 4), lambda row, part: (row, 0, 0), memory_space=pltpu.SMEM) for _ in words
    ]
    of_inputs.append(pl.BlockSpec(parameters.shape, lambda row, part: (0, 0)))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    if sums:
        out_specs.append(pl.BlockSpec((1, sums, features), lambda row, part: (row * parts + part, 0, 0)))
        out_shape.append(jax.ShapeDtypeStruct((rows * parts, sums, features), jnp.float32))
    return pl.pallas_call(
        kernel,
        grid=(rows, parts),
        in_specs=[*of_inputs, *[block] * len(arrays)],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
    )(*inputs, *arrays)


def _tokens_a_step(length: int, features: int) -> int:
    """Returns how many tokens a step of the grid takes.

    The more, the less the overhead of the steps: it is a fifth of the cycles of steps of 128 tokens. Their
    float32 blocks have to fit into vector memory: 512 tokens of Base would take 12.5 of v4's 16 MiB.
    """
    larger = (4 * RESIDUAL_TOKENS, 2 * RESIDUAL_TOKENS)
    fitting = (size for size in larger if not length % size and size * features <= _LARGEST)
    return next(fitting, RESIDUAL_TOKENS)


def after_forward(words, parameters, x, h, out, total, *, epsilon, rate):
    """Writes the end of a half and the sum that its norm is of; see `residual`."""
    bias, scale, offset = (parameters[i : i + 1] for i in range(3))
    branch = h[0].astype(jnp.float32) + bias
    summed = (x[0].astype(jnp.float32) + _drop(branch, words, rate)).astype(total.dtype)
    total[0] = summed
    out[0] = (normalize(summed, epsilon)[0] * scale + offset).astype(out.dtype)


def after_backward(words, parameters, gradient, total, dx, dh, sums, *, epsilon, rate):
    """Writes the gradients of x and h, and sums over tokens for those of the parameters; see `residual`."""
    scale = parameters[1:2]
    g = gradient[0].astype(jnp.float32)
    normalized, inverse = normalize(total[0], epsilon)
    inner = g * scale
    d_total = normalize_bwd(inner, normalized, inverse)
    d_branch = _drop(d_total, words, rate)
    dx[0] = d_total.astype(dx.dtype)
    dh[0] = d_branch.astype(dh.dtype)
    for place, summed in enumerate((d_branch, g * normalized, g)):
        sums[0, place : place + 1] = jnp.sum(summed, axis=0, keepdims=True)


def before_forward(parameters, x, out, *, centered, epsilon):
    """Writes the norm at the start of a half; see `residual`."""
    normalized, _ = normalize(x[0], epsilon, centered=centered)
    out[0] = (normalized * parameters[0:1] + parameters[1:2]).astype(out.dtype)


def before_backward(parameters, x, of_norm, of_x, dx, sums, *, centered, epsilon):
    """Writes the gradient of x, and sums over tokens for those of the parameters; see `residual`."""
    g = of_norm[0].astype(jnp.float32)
    normalized, inverse = normalize(x[0], epsilon, centered=centered)
    inner = normalize_bwd(g * parameters[0:1], normalized, inverse, centered=centered)
    dx[0] = (of_x[0].astype(jnp.float32) + inner).astype(dx.dtype)
    for place, summed in enumerate((g * normalized, g)):
        sums[0, place : place + 1] = jnp.sum(summed, axis=0, keepdims=True)


def _drop(x, words, rate):
    """Applies dropout to a block [tokens, F] of float32."""
    if not rate:
        return x
    tokens, features = x.shape
    token = jax.lax.broadcasted_iota(jnp.int32, (1, tokens), 1) + pl.program_id(1) * tokens
    place = jax.lax.broadcasted_iota(jnp.int32, (1, features), 1)
    first, second, *of_places = (words[0, 0, i].astype(jnp.uint32) for i in range(4))
    lines = in_rows(line_words(token.astype(jnp.uint32), first, second))
    places = place_words(place.astype(jnp.uint32), *of_places)
    kept = keep_by_parts(lines, places, 1, threshold(rate), not platform.multiplies_integers())
    return jnp.where(kept, x * (1 / (1 - rate)), 0.0)
