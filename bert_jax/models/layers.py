"""Dense and LayerNorm as BERT has them: float32 parameters with logical axis names, computed in a chosen
dtype."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.models.platform import target_platform


def kernel_init(stddev: float):
    """Truncated normal at two standard deviations, as TensorFlow's: `stddev` is before truncation."""

    def init(key, shape, dtype=jnp.float32):
        return (stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape)).astype(dtype)

    return init


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x), exact (Hendrycks and Gimpel 2016). By erf: `jax.nn.gelu` goes through erfc, which costs
    more."""
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


def _sum_rows(x: jax.Array) -> jax.Array:
    """[N, F] -> float32 [F]. On CPU as a product with ones: XLA's column sums are ten times slower there."""
    if target_platform() != "cpu":
        return jnp.sum(x, axis=0, dtype=jnp.float32)
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.dot(ones, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)[0]


def _materialise(x: jax.Array) -> jax.Array:
    # XLA:CPU fuses an elementwise producer into the transposed copy that a product needs, and computes it in
    # strides.
    return jax.lax.optimization_barrier(x) if target_platform() == "cpu" else x


def _apart(x: jax.Array) -> jax.Array:
    # XLA:TPU fuses the cast of a kernel into the product, which then reads float32 for each tile of rows, and
    # the reshape of a kernel's gradient, which then wants transposed copies of its operands.
    return jax.lax.optimization_barrier(x) if target_platform() == "tpu" else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, transposed: bool = False) -> jax.Array:
    """x W + b, or x W' + b where `transposed`; gradients of W and b are accumulated in float32.

    Args:
      x: [N, I] float32 or bfloat16, which is the dtype of the product.
      kernel: float32 [I, O], or [O, I] where transposed.
      bias: float32 [O]; None for x W alone.
    """
    return _dense_fwd(x, kernel, bias, transposed)[0]


def _dense_fwd(x, kernel, bias, transposed):
    kernel = kernel.astype(x.dtype)
    if not transposed:  # the word embeddings, which meet few rows, are large
        kernel = _apart(kernel)
    y = jax.lax.dot_general(x, kernel, (((1,), (1 if transposed else 0,)), ((), ())))
    if bias is None:
        return y, (x, kernel, None)
    return y + bias.astype(x.dtype), (x, kernel, ())  # (): there is a bias, said without an array


def _dense_bwd(transposed, residuals, g):
    x, kernel, biased = residuals
    x, g = _materialise(x), _materialise(g)
    dx = jax.lax.dot_general(g, kernel.astype(g.dtype), (((1,), (0 if transposed else 1,)), ((), ())))

    def outer(left, right):  # sum over rows of left[n] right[n]'
        return jax.lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    # The left operand is the one that gets transposed: let it be the narrower.
    if transposed:
        dkernel = outer(g, x)
    else:
        dkernel = _apart(outer(x, g) if x.shape[1] <= g.shape[1] else outer(g, x).T)
    return dx.astype(x.dtype), dkernel, None if biased is None else _sum_rows(g)


dense.defvjp(_dense_fwd, _dense_bwd)


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


def normalise(x: jax.Array, epsilon: float, one_pass: bool = False) -> tuple[jax.Array, jax.Array]:
    """float32 x less its mean, by its standard deviation, over the last dimension; and the inverse.

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


def normalise_bwd(g: jax.Array, normalised: jax.Array, inverse: jax.Array) -> jax.Array:
    """The gradient of x from that of `normalise`'s first result, all float32."""
    mean = jnp.mean(g, axis=-1, keepdims=True)
    return inverse * (g - mean - normalised * jnp.mean(g * normalised, axis=-1, keepdims=True))


def _normalise(x, epsilon):
    # On TPU in one pass over x, which is in HBM. The digits that E[x^2] - E[x]^2 loses in float32 where the
    # mean is large are fewer than bfloat16 has lost of x before.
    return normalise(x, epsilon, one_pass=x.dtype == jnp.bfloat16 and target_platform() == "tpu")


@jax.custom_vjp
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float) -> jax.Array:
    """LayerNorm over the last dimension (Ba et al. 2016): float32 statistics, result of the dtype of x. The
    statistics of a float32 x are taken in two passes.

    Args:
      x: [..., F] float32 or bfloat16.
      scale, bias: float32 [F].
      epsilon: added to the variance.
    """
    return (_normalise(x, epsilon)[0] * scale + bias).astype(x.dtype)


def _layer_norm_fwd(x, scale, bias, epsilon):
    return layer_norm(x, scale, bias, epsilon), (x, scale, epsilon)


def _layer_norm_bwd(residuals, g):
    # Only x is kept: the normalised rows are computed again, which costs less than writing and reading them.
    x, scale, epsilon = residuals
    normalised, inverse = _normalise(x, epsilon)
    g = _materialise(g).astype(jnp.float32)
    dx = normalise_bwd(g * scale, normalised, inverse)
    features = x.shape[-1]
    return (
        dx.astype(x.dtype),
        _sum_rows((g * normalised).reshape(-1, features)),
        _sum_rows(g.reshape(-1, features)),
        None,
    )


layer_norm.defvjp(_layer_norm_fwd, _layer_norm_bwd)


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
