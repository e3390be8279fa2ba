"""A sublayer's norm, and what is computed with it, as a single Pallas kernel for TPU.

`residual_norm` is the end of a sublayer where norms follow the sums: XLA needs two passes over HBM in the
forward direction, one for the sum with its statistics and one for the normalized rows. `norm_and_input` is
the start of a sublayer where norms precede the sums: XLA writes x in float32 for the statistics, reads it
twice, and adds the two gradients of x, of the sum and of the norm, in another pass. The kernels read or write
every array of states once in either direction. Their dropout masks are bitwise equal to `dropout`'s: they are
hashed from the element's position in both passes. On a CPU the kernels are interpreted, which is slow.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import platform
from bert_jax.kernels.dispatch import RESIDUAL_TOKENS
from bert_jax.kernels.dropout import column_hash, keep, kernel_seeds, row_hash
from bert_jax.kernels.layer_norm import normalize, normalize_bwd
from bert_jax.kernels.tpu.blocks import in_rows, widened

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

# Part of the operation's name, which tells these kernels from the attention kernels in a program.
SCOPE = "residual_norm"
_BY_ROW = ("batch", None, None)
_LARGEST = 256 * 1024  # elements of a block


def residual_norm(
    x: jax.Array,
    h: jax.Array,
    bias: jax.Array,
    scale: jax.Array,
    offset: jax.Array,
    *,
    epsilon: float,
    rate: float = 0.0,
    key: jax.Array | None = None,
) -> jax.Array:
    """Returns LayerNorm(x + dropout(h + bias)) over the last dimension, with statistics in float32.

    Args:
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows. On a mesh the rows may be split.
        h: as `x`.
        bias: float32 [F], added to h.
        scale: float32 [F], the factor of LayerNorm.
        offset: float32 [F], what LayerNorm adds.
        epsilon: added to the variance.
        rate: dropout rate.
        key: as in `dropout`, which uses the same mask.

    Returns:
        [B, L, F] in the dtype of x.
    """
    rate = 0.0 if key is None else rate
    seeds = kernel_seeds(key if rate else None, len(x))[:, None]
    kernel = functools.partial(_post, (epsilon, rate, platform.interprets_kernels()))
    kernel = platform.on_each_device(kernel, (_BY_ROW, _BY_ROW, (None, None), _BY_ROW), _BY_ROW)
    with jax.named_scope(SCOPE):
        return kernel(x, h, jnp.stack([bias, scale, offset]), seeds)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _post(options, x, h, parameters, seeds):
    return _post_fwd(options, x, h, parameters, seeds)[0]


def _post_fwd(options, x, h, parameters, seeds):
    epsilon, rate, interpret = options
    kernel = functools.partial(_post_forward, epsilon=epsilon, rate=rate)
    out, total = _run_by_rows(kernel, (seeds, parameters), (x, h), 2, interpret=interpret)
    return out, (total, parameters, seeds)


def _post_bwd(options, residuals, gradient):
    total, parameters, seeds = residuals
    epsilon, rate, interpret = options
    kernel = functools.partial(_post_backward, epsilon=epsilon, rate=rate)
    inputs = (seeds, parameters)
    dx, dh, sums = _run_by_rows(kernel, inputs, (gradient, total), 2, sums=3, interpret=interpret)
    return dx, dh, jnp.sum(sums, axis=0), None


_post.defvjp(_post_fwd, _post_bwd)


def norm_and_input(
    kind: str, x: jax.Array, scale: jax.Array, offset: jax.Array | None, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the norm of x over the last dimension, with statistics in float32, and x.

    The gradient of x is computed from the gradients of both results at once.

    Args:
        kind: "layernorm" or "rmsnorm".
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows. On a mesh the rows may be split.
        scale: float32 [F], the factor of the norm.
        offset: float32 [F], what the norm adds; None for 0.
        epsilon: added to the variance, or to the mean square.

    Returns:
        Two arrays [B, L, F] in the dtype of x.
    """
    kernel = functools.partial(_pre, (epsilon, kind == "layernorm", platform.interprets_kernels()))
    kernel = platform.on_each_device(kernel, (_BY_ROW, (None, None)), [_BY_ROW, _BY_ROW])
    offset = jnp.zeros_like(scale) if offset is None else offset
    with jax.named_scope(SCOPE):
        return kernel(x, jnp.stack([scale, offset]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _pre(options, x, parameters):
    return _pre_fwd(options, x, parameters)[0]


def _pre_fwd(options, x, parameters):
    epsilon, centered, interpret = options
    kernel = functools.partial(_pre_forward, epsilon=epsilon, centered=centered)
    (normed,) = _run_by_rows(kernel, (parameters,), (x,), 1, interpret=interpret)
    return (normed, x), (x, parameters)


def _pre_bwd(options, residuals, gradients):
    x, parameters = residuals
    epsilon, centered, interpret = options
    kernel = functools.partial(_pre_backward, epsilon=epsilon, centered=centered)
    dx, sums = _run_by_rows(kernel, (parameters,), (x, *gradients), 1, sums=2, interpret=interpret)
    return dx, jnp.sum(sums, axis=0)


_pre.defvjp(_pre_fwd, _pre_bwd)


def _run_by_rows(kernel, inputs, arrays, results, *, sums=0, interpret):
    """Runs a kernel over a grid of (rows, blocks of tokens).

    `inputs` are the parameters, float32 [P, F], which the kernel reads whole; before them the seeds of the
    rows, [B, 1, 4], if it has dropout. `arrays`, [B, L, F] each, and the `results` are read and written by
    blocks. With `sums` the last result is float32 [steps, sums, F].
    """
    rows, length, features = arrays[0].shape
    tokens = _tokens_a_step(length, features)
    steps = length // tokens
    block = pl.BlockSpec((1, tokens, features), lambda row, step: (row, step, 0))
    *seeds, parameters = inputs
    of_inputs = [
        pl.BlockSpec((1, 1, 4), lambda row, step: (row, 0, 0), memory_space=pltpu.SMEM) for _ in seeds
    ]
    of_inputs.append(pl.BlockSpec(parameters.shape, lambda row, step: (0, 0)))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    if sums:
        out_specs.append(pl.BlockSpec((1, sums, features), lambda row, step: (row * steps + step, 0, 0)))
        out_shape.append(jax.ShapeDtypeStruct((rows * steps, sums, features), jnp.float32))
    return pl.pallas_call(
        kernel,
        grid=(rows, steps),
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


def _post_forward(seeds, parameters, x, h, out, total, *, epsilon, rate):
    bias, scale, offset = (parameters[i : i + 1] for i in range(3))
    branch = h[0].astype(jnp.float32) + bias
    summed = (x[0].astype(jnp.float32) + _drop(branch, seeds, rate)).astype(total.dtype)
    total[0] = summed
    out[0] = (normalize(summed, epsilon)[0] * scale + offset).astype(out.dtype)


def _post_backward(seeds, parameters, gradient, total, dx, dh, sums, *, epsilon, rate):
    g = gradient[0].astype(jnp.float32)
    normalized, inverse = normalize(total[0], epsilon)
    d_total = normalize_bwd(g * parameters[1:2], normalized, inverse)
    d_branch = _drop(d_total, seeds, rate)
    dx[0] = d_total.astype(dx.dtype)
    dh[0] = d_branch.astype(dh.dtype)
    _write_sums(sums, d_branch, g * normalized, g)


def _pre_forward(parameters, x, out, *, centered, epsilon):
    normalized, _ = normalize(x[0], epsilon, centered=centered)
    out[0] = (normalized * parameters[0:1] + parameters[1:2]).astype(out.dtype)


def _pre_backward(parameters, x, of_norm, of_x, dx, sums, *, centered, epsilon):
    g = of_norm[0].astype(jnp.float32)
    normalized, inverse = normalize(x[0], epsilon, centered=centered)
    inner = normalize_bwd(g * parameters[0:1], normalized, inverse, centered=centered)
    dx[0] = (of_x[0].astype(jnp.float32) + inner).astype(dx.dtype)
    _write_sums(sums, g * normalized, g)


def _write_sums(sums, *arrays):
    for place, summed in enumerate(arrays):
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
