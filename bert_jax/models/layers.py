"""Dense and LayerNorm as BERT has them: float32 parameters with logical axis names, computed in a chosen
dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels.dense import dense
from bert_jax.kernels.layer_norm import layer_norm


def kernel_init(stddev: float):
    """Truncated normal at two standard deviations, as TensorFlow's: `stddev` is before truncation."""

    def init(key, shape, dtype=jnp.float32):
        return (stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape)).astype(dtype)

    return init


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x), exact (Hendrycks and Gimpel 2016). By erf: `jax.nn.gelu` goes through erfc, which costs
    more.
    """
    return x * _normal_cdf(x)


def _normal_cdf(x):
    return 0.5 * (1 + jax.lax.erf(x * jnp.asarray(math.sqrt(0.5), x.dtype)))


def _gelu_bwd(x, g):
    density = jnp.exp(-0.5 * jnp.square(x)) * jnp.asarray(1 / math.sqrt(2 * math.pi), x.dtype)
    return (g * (_normal_cdf(x) + x * density),)


# Autodiff would keep erf(x) beside x, the widest activation of a layer once more.
gelu.defvjp(lambda x: (gelu(x), x), _gelu_bwd)


def activation(name: str):
    """The function behind a `hidden_act`."""
    return {"gelu": gelu, "gelu_tanh": jax.nn.gelu, "relu": jax.nn.relu}[name]


class Dense(nn.Module):
    """y = x W + b over the last `len(in_axes)` dimensions of x.

    `in_axes` and `out_axes` are the logical names of the kernel's dimensions, `features` the sizes of the
    output's.
    """

    features: Sequence[int]
    in_axes: Sequence[str]
    out_axes: Sequence[str]
    stddev: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, bias_apart: bool = False) -> jax.Array | tuple[jax.Array, jax.Array]:
        """[..., *in] -> [..., *features]; with `bias_apart` x W and b, for the caller to add."""
        rows, inputs = x.shape[: -len(self.in_axes)], x.shape[-len(self.in_axes) :]
        kernel = self.param(
            "kernel",
            nn.with_logical_partitioning(kernel_init(self.stddev), (*self.in_axes, *self.out_axes)),
            (*inputs, *self.features),
            jnp.float32,
        )
        bias = self.param(
            "bias",
            nn.with_logical_partitioning(nn.initializers.zeros, tuple(self.out_axes)),
            tuple(self.features),
            jnp.float32,
        )
        x = x.reshape(-1, math.prod(inputs)).astype(self.dtype)
        y = dense(x, kernel.reshape(x.shape[1], -1), None if bias_apart else bias.reshape(-1))
        y = y.reshape(*rows, *self.features)
        return (y, bias) if bias_apart else y


class LayerNorm(nn.Module):
    """`layer_norm` with its parameters; or another function of the same arguments, without the cast of x."""

    epsilon: float
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: jax.Array, normalise: Callable | None = None) -> jax.Array:
        size = x.shape[-1:]
        scale = self.param(
            "scale", nn.with_logical_partitioning(nn.initializers.ones, ("norm",)), size, jnp.float32
        )
        bias = self.param(
            "bias", nn.with_logical_partitioning(nn.initializers.zeros, ("norm",)), size, jnp.float32
        )
        if normalise is not None:
            return normalise(x, scale, bias, self.epsilon)
        return layer_norm(x.astype(self.dtype), scale, bias, self.epsilon)
