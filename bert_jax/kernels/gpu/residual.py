"""The kernels of `residual` for NVIDIA GPUs, in Pallas, compiled by Triton.

XLA writes the sum with a mask of dropout and reads both again for the norm; in the backward direction it
writes a float32 gradient of the sum, which three kernels read, and reads the states twice more for the
gradients of the parameters.

A program is one warp, which takes one token at a time: all of its features are in registers, sums over them
need no memory that warps share, and the gradients of the parameters are added up in registers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from bert_jax.kernels.dropout import PAIR, line_words, place_words, products_of_parts, threshold

with epy.lazy_imports():  # programs for other platforms do not wait for this import
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton as plgpu

# Tokens of a program. With more of them there are fewer parts of the parameters' gradients to write, and with
# fewer of them there are more warps whose loads are in flight.
_TOKENS = 32


def run_by_rows(
    kernel: Callable[..., None],
    inputs: Sequence[jax.Array],
    arrays: Sequence[jax.Array],
    *,
    results: int,
    sums: int = 0,
    interpret: bool,
) -> list[jax.Array]:
    """Runs a kernel over a grid of (blocks of tokens, rows).

    Args:
        kernel: function of references to `inputs`, a block of each of `arrays`, and a block of each result.
        inputs: the parameters, float32 [P, F], which the kernel is given whole; before them the words of the
            rows for dropout, [B, 1, 4], if it has dropout.
        arrays: [B, L, F] each.
        results: number of results of the shape of the first of `arrays`.
        sums: number of sums over the tokens of a block, for one more result; 0 for none.
        interpret: whether to run without a GPU, which is slow.

    Returns:
        The results; with `sums` the last one is float32 [blocks, sums, F].
    """
    rows, length, features = arrays[0].shape
    tokens = math.gcd(length, _TOKENS)
    parts = length // tokens
    block = pl.BlockSpec((None, tokens, features), lambda part, row: (row, part, 0))
    *words, parameters = inputs
    of_inputs = [pl.BlockSpec((None, None, 4), lambda part, row: (row, 0, 0)) for _ in words]
    of_inputs.append(pl.BlockSpec(parameters.shape, lambda part, row: (0, 0)))
    out_specs = [block] * results
    out_shape = [jax.ShapeDtypeStruct(arrays[0].shape, arrays[0].dtype)] * results
    if sums:
        out_specs.append(pl.BlockSpec((None, sums, features), lambda part, row: (row * parts + part, 0, 0)))
        out_shape.append(jax.ShapeDtypeStruct((rows * parts, sums, features), jnp.float32))
    return pl.pallas_call(
        kernel,
        grid=(parts, rows),
        in_specs=[*of_inputs, *[block] * len(arrays)],
        out_specs=out_specs,
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(num_warps=1, num_stages=1),
        interpret=interpret,
    )(*inputs, *arrays)


def after_forward(words, parameters, x, h, out, total, *, epsilon, rate):
    """Writes the end of a half and the sum that its norm is of; see `residual`."""
    bias, scale, offset = (_read(parameters, i) for i in range(3))
    drop = _make_dropout(words, x.shape, rate)

    def token(i, nothing):
        branch = drop(_add(_read(h, i), bias), i)
        rounded = [part.astype(total.dtype) for part in _add(_read(x, i), branch)]
        _write(total, i, rounded)
        normalized, _ = _normalize([part.astype(jnp.float32) for part in rounded], epsilon)
        _write(out, i, _add(_multiply(normalized, scale), offset))
        return nothing

    jax.lax.fori_loop(0, x.shape[0], token, 0)


def after_backward(words, parameters, gradient, total, dx, dh, sums, *, epsilon, rate):
    """Writes the gradients of x and h, and sums over tokens for those of the parameters; see `residual`."""
    scale, drop = _read(parameters, 1), _make_dropout(words, dx.shape, rate)

    def token(i, summed):
        g = _read(gradient, i)
        normalized, inverse = _normalize(_read(total, i), epsilon)
        d_total = _normalize_bwd(_multiply(g, scale), normalized, inverse)
        d_branch = drop(d_total, i)
        _write(dx, i, d_total)
        _write(dh, i, d_branch)
        return [_add(*both) for both in zip(summed, (d_branch, _multiply(g, normalized), g), strict=True)]

    _write_sums(sums, jax.lax.fori_loop(0, dx.shape[0], token, _zeros(sums)))


def before_forward(parameters, x, out, *, epsilon, centered):
    """Writes the norm at the start of a half; see `residual`."""
    scale, offset = (_read(parameters, i) for i in range(2))

    def token(i, nothing):
        normalized, _ = _normalize(_read(x, i), epsilon, centered)
        _write(out, i, _add(_multiply(normalized, scale), offset))
        return nothing

    jax.lax.fori_loop(0, x.shape[0], token, 0)


def before_backward(parameters, x, of_norm, of_x, dx, sums, *, epsilon, centered):
    """Writes the gradient of x, and sums over tokens for those of the parameters; see `residual`."""
    scale = _read(parameters, 0)

    def token(i, summed):
        g = _read(of_norm, i)
        normalized, inverse = _normalize(_read(x, i), epsilon, centered)
        inner = _normalize_bwd(_multiply(g, scale), normalized, inverse, centered)
        _write(dx, i, _add(_read(of_x, i), inner))
        return [_add(*both) for both in zip(summed, (_multiply(g, normalized), g), strict=True)]

    _write_sums(sums, jax.lax.fori_loop(0, dx.shape[0], token, _zeros(sums)))


# The features of a token are a list of float32 arrays [PAIR], because Triton's arrays have powers of 2 as
# sizes. Dropout takes them in pairs.


def _starts(reference):
    return range(0, reference.shape[-1], PAIR)


def _read(reference, i):
    return [reference[i, pl.ds(start, PAIR)].astype(jnp.float32) for start in _starts(reference)]


def _write(reference, i, parts):
    for start, part in zip(_starts(reference), parts, strict=True):
        reference[i, pl.ds(start, PAIR)] = part.astype(reference.dtype)


def _zeros(sums):
    return [[jnp.zeros(PAIR, jnp.float32) for _ in _starts(sums)] for _ in range(sums.shape[0])]


def _write_sums(sums, summed):
    for i, parts in enumerate(summed):
        _write(sums, i, parts)


def _add(left, right):
    return [one + other for one, other in zip(left, right, strict=True)]


def _multiply(left, right):
    return [one * other for one, other in zip(left, right, strict=True)]


def _mean(parts):
    return jnp.sum(functools.reduce(jnp.add, parts)) * (1 / (len(parts) * PAIR))


def _normalize(parts, epsilon, centered=True):
    """Returns what `layer_norm.normalize` does, of one token."""
    if centered:
        mean = _mean(parts)
        parts = [part - mean for part in parts]
    inverse = jax.lax.rsqrt(_mean(_multiply(parts, parts)) + epsilon)
    return [part * inverse for part in parts], inverse


def _normalize_bwd(g, normalized, inverse, centered=True):
    """Returns what `layer_norm.normalize_bwd` does, of one token."""
    mean = _mean(g) if centered else 0.0
    along = _mean(_multiply(g, normalized))
    return [inverse * (one - mean - other * along) for one, other in zip(g, normalized, strict=True)]


def _make_dropout(words, block, rate):
    """Returns dropout of the features of a token, given its number in the program's block."""
    if not rate:
        return lambda parts, i: parts
    tokens, features = block
    first, second, *of_places = (words[i].astype(jnp.uint32) for i in range(4))
    start_of_block = pl.program_id(0) * tokens
    place = jax.lax.broadcasted_iota(jnp.uint32, (PAIR,), 0)
    # They stay in registers while the tokens change, and those of a pair's second half are not needed.
    places = [place_words(place + np.uint32(start), *of_places) for start in range(0, features, PAIR)]

    def drop(parts, i):
        line = line_words((start_of_block + i).astype(jnp.uint32), first, second)
        products = products_of_parts(line, places, in_pairs=True)
        return [
            jnp.where(product >= threshold(rate), part * (1 / (1 - rate)), 0.0)
            for product, part in zip(products, parts, strict=True)
        ]

    return drop
