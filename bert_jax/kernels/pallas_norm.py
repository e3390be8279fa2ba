"""The norm at the start of a half of a pre-norm layer, x + f(norm(x)), as a Pallas kernel for TPU.

XLA writes x in float32 for the statistics, reads it twice, and adds the two gradients of x, that of the sum
and that of the norm, in a pass of its own. Here every array is read or written once in either direction.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dispatch import ResidualCase
from bert_jax.kernels.layer_norm import normalize, normalize_bwd
from bert_jax.kernels.pallas_residual import SCOPE, run_by_rows


def norm_beside(
    kind: str, x: jax.Array, scale: jax.Array, offset: jax.Array | None, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    """Returns the norm of x over the last dimension, with statistics in float32, and x.

    The gradient of x is computed from those of both results at once. Without a TPU the kernel is interpreted,
    which is slow.

    Args:
        kind: "layernorm" or "rmsnorm".
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows for this kernel. On a mesh the
            rows may be split.
        scale: float32 [F], the factor of the norm.
        offset: float32 [F], what the norm adds; None for 0.
        epsilon: added to the variance, or to the mean square.

    Returns:
        Two arrays [B, L, F] in the dtype of x.

    Raises:
        UserError: there is no kernel for these shapes.
    """
    _, length, features = x.shape
    dispatch.check_case("residual", "pallas", ResidualCase(length, features, "pre", kind))
    kernel = functools.partial(_norm, kind == "layernorm", epsilon, platform.interprets_kernels())
    by_row = ("batch", None, None)
    kernel = platform.on_each_device(kernel, (by_row, (None, None)), [by_row, by_row])
    offset = jnp.zeros_like(scale) if offset is None else offset
    with jax.named_scope(SCOPE):
        return kernel(x, jnp.stack([scale, offset]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _norm(centered, epsilon, interpret, x, parameters):
    return _norm_fwd(centered, epsilon, interpret, x, parameters)[0]


def _norm_fwd(centered, epsilon, interpret, x, parameters):
    kernel = functools.partial(_forward, centered=centered, epsilon=epsilon)
    (normed,) = run_by_rows(kernel, (parameters,), (x,), results=1, interpret=interpret)
    return (normed, x), (x, parameters)


def _norm_bwd(centered, epsilon, interpret, residuals, gradients):
    x, parameters = residuals
    kernel = functools.partial(_backward, centered=centered, epsilon=epsilon)
    arrays = (x, *gradients)
    dx, sums = run_by_rows(kernel, (parameters,), arrays, results=1, sums=2, interpret=interpret)
    return dx, jnp.sum(sums, axis=0)


_norm.defvjp(_norm_fwd, _norm_bwd)


def _forward(parameters, x, out, *, centered, epsilon):
    normalized, _ = normalize(x[0], epsilon, centered=centered)
    out[0] = (normalized * parameters[0:1] + parameters[1:2]).astype(out.dtype)


def _backward(parameters, x, of_norm, of_x, dx, sums, *, centered, epsilon):
    g = of_norm[0].astype(jnp.float32)
    normalized, inverse = normalize(x[0], epsilon, centered=centered)
    inner = normalize_bwd(g * parameters[0:1], normalized, inverse, centered=centered)
    dx[0] = (of_x[0].astype(jnp.float32) + inner).astype(dx.dtype)
    for place, summed in enumerate((g * normalized, g)):
        sums[0, place : place + 1] = jnp.sum(summed, axis=0, keepdims=True)
