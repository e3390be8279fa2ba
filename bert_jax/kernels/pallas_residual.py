"""LayerNorm(x + dropout(h + b)), the end of both halves of a layer, as a single Pallas kernel for TPU.

XLA needs two passes over HBM in the forward direction, one for the sum with its statistics and one for the
normalized rows. Here every array is read or written once in either direction. The mask is bitwise equal to
that of `dropout`: it is hashed from the element's position in both passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from etils import epy

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dispatch import RESIDUAL_TOKENS, Choice, ResidualCase
from bert_jax.kernels.dropout import keep_lines, kernel_words, threshold
from bert_jax.kernels.layer_norm import normalize, normalize_bwd

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

_LARGEST = 256 * 1024  # elements of a block
SCOPE = "residual_norm"  # part of the operation's name, which tells this kernel from attention's in a program


def choose_here(requested: str, case: ResidualCase) -> Choice:
    """Returns the implementation to use, and why, for the platform being traced for.

    Args:
        requested: "auto", "xla" or "pallas".
        case: what is computed.

    Raises:
        UserError: the kernel is requested by name and cannot compute this.
    """
    return dispatch.choose("residual", requested, case, platform.target())


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

    Without a TPU the kernel is interpreted, which is slow.

    Args:
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows for this kernel. On a mesh the
            rows may be split.
        h: as `x`.
        bias: float32 [F], added to h.
        scale: float32 [F], the factor of LayerNorm.
        offset: float32 [F], what LayerNorm adds.
        epsilon: added to the variance.
        rate: dropout rate.
        key: as in `dropout`, which uses the same mask.

    Returns:
        [B, L, F] in the dtype of x.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    rows, length, features = x.shape
    dispatch.check_case("residual", "pallas", ResidualCase(length, features))
    if key is None:
        rate = 0.0
    words = kernel_words(key if rate else None, rows)[:, None]
    kernel = functools.partial(_residual, epsilon, rate, platform.interprets_kernels())
    by_row = ("batch", None, None)
    kernel = platform.on_each_device(kernel, (by_row, by_row, (None, None), by_row), by_row)
    with jax.named_scope(SCOPE):
        return kernel(x, h, jnp.stack([bias, scale, offset]), words)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _residual(epsilon, rate, interpret, x, h, parameters, words):
    return _residual_fwd(epsilon, rate, interpret, x, h, parameters, words)[0]


def _residual_fwd(epsilon, rate, interpret, x, h, parameters, words):
    kernel = functools.partial(_forward, epsilon=epsilon, rate=rate)
    out, total = run_by_rows(kernel, (words, parameters), (x, h), results=2, interpret=interpret)
    return out, (total, parameters, words)


def _residual_bwd(epsilon, rate, interpret, residuals, gradient):
    total, parameters, words = residuals
    kernel = functools.partial(_backward, epsilon=epsilon, rate=rate)
    inputs, arrays = (words, parameters), (gradient, total)
    dx, dh, sums = run_by_rows(kernel, inputs, arrays, results=2, sums=3, interpret=interpret)
    return dx, dh, jnp.sum(sums, axis=0), None


_residual.defvjp(_residual_fwd, _residual_bwd)


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
            rows for dropout, [B, 1, 2], if it has dropout.
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
        pl.BlockSpec((1, 1, 2), lambda row, part: (row, 0, 0), memory_space=pltpu.SMEM) for _ in words
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


def _forward(words, parameters, x, h, out, total, *, epsilon, rate):
    bias, scale, offset = (parameters[i : i + 1] for i in range(3))
    branch = h[0].astype(jnp.float32) + bias
    summed = (x[0].astype(jnp.float32) + _drop(branch, words, rate)).astype(total.dtype)
    total[0] = summed
    out[0] = (normalize(summed, epsilon)[0] * scale + offset).astype(out.dtype)


def _backward(words, parameters, gradient, total, dx, dh, sums, *, epsilon, rate):
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


def _drop(x, words, rate):
    """Applies dropout to a block [tokens, F] of float32."""
    if not rate:
        return x
    tokens, features = x.shape
    token = jax.lax.broadcasted_iota(jnp.int32, (tokens, 1), 0) + pl.program_id(1) * tokens
    first, second = (words[0, 0, i].astype(jnp.uint32) for i in range(2))
    line = (token * features).astype(jnp.uint32)
    kept = keep_lines(line, features, 1, first, second, threshold(rate))
    return jnp.where(kept, x * (1 / (1 - rate)), 0.0)
