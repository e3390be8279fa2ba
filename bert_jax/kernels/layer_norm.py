"""LayerNorm and RMSNorm with float32 statistics, as functions of arrays."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels import platform
from bert_jax.kernels.matmul import materialize, pack, sum_rows, unpack


def normalize(x: jax.Array, epsilon: float, one_pass: bool = False) -> tuple[jax.Array, jax.Array]:
    """Returns float32 (x - mean) / standard deviation over the last dimension, and 1 / standard deviation.

    With `one_pass` the variance is E[x^2] - E[x]^2.
    """
    x = x.astype(jnp.float32)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    if one_pass:
        variance = jnp.maximum(jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean), 0)
    else:
        variance = jnp.mean(jnp.square(x - mean), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(variance + epsilon)
    return (x - mean) * scale, scale


def normalize_bwd(g: jax.Array, normalized: jax.Array, inverse: jax.Array) -> jax.Array:
    """Returns the gradient of x from `g`, the gradient of `normalize`'s first result, all float32."""
    g_centered = g - jnp.mean(g, axis=-1, keepdims=True)
    return inverse * (g_centered - normalized * jnp.mean(g * normalized, axis=-1, keepdims=True))


def _normalize(x, epsilon):
    # One pass over x on TPU, because x is in HBM. If the mean is large, E[x^2] - E[x]^2 loses digits in
    # float32, but fewer than the conversion of x to bfloat16 has already lost.
    return normalize(x, epsilon, one_pass=x.dtype == jnp.bfloat16 and platform.target_platform() == "tpu")


@jax.custom_vjp
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """LayerNorm over the last dimension (Ba et al. 2016), with statistics in float32.

    x and the result are [..., F] in one dtype, float32 or bfloat16. The statistics of a float32 x are
    computed in two passes. The scale and the bias, which may be None, are float32 [F]. Epsilon is added to
    the variance.
    """
    scaled = _normalize(x, epsilon)[0] * scale
    return (scaled if bias is None else scaled + bias).astype(x.dtype)


def _layer_norm_fwd(x, scale, bias, epsilon):
    # The empty tuple, which contains no array, records that the norm has a bias.
    return layer_norm(x, scale, bias, epsilon), (pack(x), scale, epsilon, None if bias is None else ())


def _layer_norm_bwd(residuals, g):
    # Only x is kept: computing the normalized rows again costs less than writing and reading them.
    x, scale, epsilon, biased = residuals
    x = unpack(x)
    normalized, inverse = _normalize(x, epsilon)
    g = materialize(g).astype(jnp.float32)
    dx = normalize_bwd(g * scale, normalized, inverse)
    features = x.shape[-1]
    return (
        dx.astype(x.dtype),
        sum_rows((g * normalized).reshape(-1, features)),
        None if biased is None else sum_rows(g.reshape(-1, features)),
        None,
    )


layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


def rms_norm(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float) -> jax.Array:
    """Divides x by its root mean square over the last dimension (Zhang and Sennrich 2019).

    The arguments are as for `layer_norm`. The mean is computed in float32, and epsilon is added to it.
    """
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + epsilon) * scale
    return (scaled if bias is None else scaled + bias).astype(x.dtype)
