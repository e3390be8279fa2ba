"""The end of a post-norm sublayer, as one Pallas kernel for TPU.

XLA needs two passes over HBM in the forward pass, one for the sum with its statistics and one for the
normalized rows. The kernel reads or writes every array of states once in either pass. Its dropout masks are
bitwise equal to the masks of `dropout`, because both hash them from the element's position in both passes.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import LANES
from bert_jax.kernels.dropout import column_hash, keep, kernel_seeds, row_hash
from bert_jax.kernels.layer_norm import normalize, normalize_bwd
from bert_jax.kernels.tpu.blocks import in_rows, widened

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

# Elements of a block. More tokens in a step reduce the overhead, which is a fifth of the cycles with steps of
# 128 tokens. But float32 blocks have to fit: 512 tokens of Base would take 12.5 of v4's 16 MiB.
_LARGEST = 256 * 1024


def residual_norm(
    x: jax.Array,
    h: jax.Array,
    bias: jax.Array | None,
    scale: jax.Array,
    offset: jax.Array | None,
    *,
    epsilon: float,
    rate: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Returns LayerNorm(x + dropout(h + bias)) over the last dimension, with statistics in float32.

    x, h and the result are [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows; on a mesh the
    rows may be split. `bias`, `scale` and `offset` are float32 [F]; None is 0. `epsilon` is added to the
    variance. `dropout` has the same mask for the same key. On a CPU the kernel is interpreted, which is slow.
    """
    rate = 0.0 if key is None else rate
    seeds = kernel_seeds(key if rate else None, len(x))[:, None]
    parameters = jnp.stack([jnp.zeros_like(scale) if one is None else one for one in (bias, scale, offset)])
    kernel = functools.partial(_norm, (epsilon, rate, platform.interprets_kernels()))
    by_row = ("batch", None, None)
    kernel = platform.on_each_device(kernel, (by_row, by_row, (None, None), by_row), by_row)
    with jax.named_scope("residual_norm"):
        return kernel(x, h, parameters, seeds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _norm(options, x, h, parameters, seeds):
    return _norm_fwd(options, x, h, parameters, seeds)[0]


def _norm_fwd(options, x, h, parameters, seeds):
    out, total = _call(options, seeds, parameters, (x, h))
    return out, (total, parameters, seeds)


def _norm_bwd(options, residuals, gradient):
    total, parameters, seeds = residuals
    dx, dh, sums = _call(options, seeds, parameters, (gradient, total), is_backward=True)
    return dx, dh, jnp.sum(sums, axis=0), None


_norm.defvjp(_norm_fwd, _norm_bwd)


def _call(options, seeds, parameters, arrays, is_backward=False):
    """Runs a kernel of two arrays [B, L, F] over a grid of (rows, blocks of tokens).

    It returns two arrays [B, L, F] and, if it is the backward kernel, the gradients of the parameters,
    float32 [steps, 3, F].
    """
    epsilon, rate, interpret = options
    rows, length, features = arrays[0].shape
    sizes = (size for size in (4 * LANES, 2 * LANES) if not length % size and size * features <= _LARGEST)
    tokens = next(sizes, LANES)
    steps = length // tokens
    block = pl.BlockSpec((1, tokens, features), lambda row, step: (row, step, 0))
    like = jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)
    of_sums = pl.BlockSpec((1, 3, features), lambda row, step: (row * steps + step, 0, 0))
    sums = jax.ShapeDtypeStruct((rows * steps, 3, features), jnp.float32)
    return pl.pallas_call(
        functools.partial(_backward if is_backward else _forward, epsilon=epsilon, rate=rate),
        grid=(rows, steps),
        in_specs=[
            pl.BlockSpec((1, 1, 4), lambda row, step: (row, 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec(parameters.shape, lambda row, step: (0, 0)),
            block,
            block,
        ],
        out_specs=[block, block, *[of_sums] * is_backward],
        out_shape=[like, like, *[sums] * is_backward],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=interpret,
    )(seeds, parameters, *arrays)


def _forward(seeds, parameters, x, h, out, total, *, epsilon, rate):
    bias, scale, offset = (parameters[i : i + 1] for i in range(3))
    branch = h[0].astype(jnp.float32) + bias
    summed = (x[0].astype(jnp.float32) + _drop(branch, seeds, rate)).astype(total.dtype)
    total[0] = summed
    out[0] = (normalize(summed, epsilon)[0] * scale + offset).astype(out.dtype)


def _backward(seeds, parameters, gradient, total, dx, dh, sums, *, epsilon, rate):
    g = gradient[0].astype(jnp.float32)
    normalized, inverse = normalize(total[0], epsilon)
    d_total = normalize_bwd(g * parameters[1:2], normalized, inverse)
    d_branch = _drop(d_total, seeds, rate)
    dx[0] = d_total.astype(dx.dtype)
    dh[0] = d_branch.astype(dh.dtype)
    for place, summed in enumerate((d_branch, g * normalized, g)):
        sums[0, place : place + 1] = jnp.sum(summed, axis=0, keepdims=True)


def _drop(x, seeds, rate):
    """Applies dropout to a block [tokens, F] of float32."""
    if not rate:
        return x
    tokens, features = x.shape
    token = jax.lax.broadcasted_iota(jnp.int32, (1, tokens), 1) + pl.program_id(1) * tokens
    column = jax.lax.broadcasted_iota(jnp.int32, (1, features), 1)
    first, second, *of_columns = (seeds[0, 0, i].astype(jnp.uint32) for i in range(4))
    rows = widened(in_rows(row_hash(token.astype(jnp.uint32), first, second)), features)
    columns = column_hash(column.astype(jnp.uint32), *of_columns)
    return jnp.where(keep(rows, columns, rate), x * (1 / (1 - rate)), 0.0)
