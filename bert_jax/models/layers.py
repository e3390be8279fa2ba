"""Building blocks of layers: dense layers, norms, activations, dropout and sublayers.

Parameters are float32 and have logical axis names; computations use the configured dtype.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dropout import dropout
from bert_jax.kernels.layer_norm import layer_norm, rms_norm
from bert_jax.kernels.matmul import dense, dense_halves, pack, unpack
from bert_jax.kernels.tpu.residual import residual_norm
from bert_jax.models.config import EncoderConfig

Initializer = Callable[..., jax.Array]


def kernel_init(stddev: float) -> Initializer:
    """Returns a normal initializer truncated at two standard deviations, as in TensorFlow."""

    def init(key, shape, dtype=jnp.float32):
        return (stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, jnp.float32)).astype(dtype)

    return init


def _megatron(config: EncoderConfig) -> tuple[Initializer, Initializer]:
    stddev = config.initializer_range
    return kernel_init(stddev), kernel_init(stddev / math.sqrt(2 * config.num_hidden_layers))


# By `initializer`: initializers of most weights, and of the output projection of each sublayer.
_INITIALIZERS: dict[str, Callable[[EncoderConfig], tuple[Initializer, Initializer]]] = {
    "truncated_normal": lambda config: (kernel_init(config.initializer_range),) * 2,
    "normal": lambda config: (nn.initializers.normal(config.initializer_range),) * 2,
    "megatron": _megatron,
}


def _gated_by_itself(gate: Callable[[jax.Array], jax.Array], slope: Callable[[jax.Array], jax.Array]):
    """Returns the activation x gate(x), which only stores x for the backward pass.

    The gate, whose derivative is `slope`, is computed in float32: in bfloat16, a sum with a number near -1
    would lose the values below 0 to rounding. Autodiff would store more arrays, and x is the widest
    activation of a layer. Like all functions with a custom backward pass, it has no forward-mode derivative
    (`jax.jvp`).
    """

    @jax.custom_vjp
    def activation(x: jax.Array) -> jax.Array:
        return x * gate(x.astype(jnp.float32)).astype(x.dtype)

    def backward(packed, g):
        x = unpack(packed)
        if x.dtype != jnp.float32:
            # Otherwise XLA stores the float32 form from the forward pass, which has twice the size.
            x = jax.lax.optimization_barrier(x)
        wide = x.astype(jnp.float32)
        return (g * (gate(wide) + wide * slope(wide)).astype(x.dtype),)

    activation.defvjp(lambda x: (activation(x), pack(x)), backward)
    return activation


def _normal_cdf(x):
    # This uses erf, because erfc, as in `jax.nn.gelu`, is slower.
    return 0.5 * (1 + jax.lax.erf(x * jnp.float32(math.sqrt(0.5))))


def _normal_density(x):
    return jnp.exp(-0.5 * jnp.square(x)) * jnp.float32(1 / math.sqrt(2 * math.pi))


_TANH_SCALE, _TANH_CUBE = 2 * math.sqrt(2 / math.pi), 0.044715


def _tanh_cdf(x):
    # (1 + tanh(y)) / 2 equals sigmoid(2 y), whose values near 0 are not lost to rounding.
    return jax.nn.sigmoid(_TANH_SCALE * (x + _TANH_CUBE * x**3))


def _tanh_density(x):
    return _sigmoid_slope(_tanh_cdf(x)) * _TANH_SCALE * (1 + 3 * _TANH_CUBE * jnp.square(x))


def _sigmoid_slope(sigmoid):
    return sigmoid * (1 - sigmoid)


# GELU, exact and by tanh: Hendrycks and Gimpel 2016; SiLU: Elfwing et al. 2017.
ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": _gated_by_itself(_normal_cdf, _normal_density),
    "gelu_tanh": _gated_by_itself(_tanh_cdf, _tanh_density),
    "relu": jax.nn.relu,
    "silu": _gated_by_itself(jax.nn.sigmoid, lambda x: _sigmoid_slope(jax.nn.sigmoid(x))),
    "tanh": jnp.tanh,
}


_ADAPTER_STDDEV = 1e-3  # standard deviation of a bottleneck adapter's initial weights


class Dense(nn.Module):
    """y = x W + b over the last `len(in_axes)` dimensions of x.

    `in_axes` and `out_axes` are the logical names of the kernel's dimensions, `features` the sizes of the
    output dimensions. Without `use_bias` there is no b. With `split_gate`, the first output dimension is 2.
    """

    features: Sequence[int]
    in_axes: Sequence[str | None]
    out_axes: Sequence[str | None]
    initializer: Initializer
    dtype: jnp.dtype
    use_bias: bool = True
    split_gate: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, separate_bias: bool = False) -> Any:
        """Returns [*rows, *features] for x [*rows, *in]; with `split_gate`, its two halves as arrays.

        With `separate_bias` it returns x W and b (None if there is no bias), and the caller adds them.
        """
        rows, inputs = x.shape[: -len(self.in_axes)], x.shape[-len(self.in_axes) :]
        kernel: jax.Array = self.param(  # type: ignore[assignment]  # Flax returns it without its box
            "kernel",
            nn.with_logical_partitioning(self.initializer, (*self.in_axes, *self.out_axes)),
            (*inputs, *self.features),
            jnp.float32,
        )
        bias: jax.Array | None = None
        if self.use_bias:
            bias = self.param(  # type: ignore[assignment]  # as above
                "bias",
                nn.with_logical_partitioning(nn.initializers.zeros, tuple(self.out_axes)),
                tuple(self.features),
                jnp.float32,
            )
        x = x.reshape(-1, math.prod(inputs)).astype(self.dtype)
        if self.split_gate:
            return dense_halves(x, kernel.reshape(x.shape[1], *self.features), bias, rows)
        y = dense(
            x, kernel.reshape(x.shape[1], -1), None if bias is None or separate_bias else bias.reshape(-1)
        )
        y = y.reshape(*rows, *self.features)
        return (y, bias) if separate_bias else y


class Norm(nn.Module):
    """A norm in `NORMS` over the last axis, with its parameters."""

    normalize: Callable[..., jax.Array]
    epsilon: float
    dtype: jnp.dtype
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: jax.Array, fused: Callable | None = None) -> jax.Array:
        """Returns the norm of x [..., F], or the result of `fused`, which replaces the norm."""

        def parameter(name: str, init: Initializer) -> Any:
            boxed = nn.with_logical_partitioning(init, ("norm",))
            return self.param(name, boxed, x.shape[-1:], jnp.float32)

        scale = parameter("scale", nn.initializers.ones)
        bias = parameter("bias", nn.initializers.zeros) if self.use_bias else None
        if fused is not None:
            return fused(scale=scale, offset=bias, epsilon=self.epsilon)
        return self.normalize(x.astype(self.dtype), scale, bias, self.epsilon)


NORMS: dict[str, Callable[..., jax.Array]] = {"layernorm": layer_norm, "rmsnorm": rms_norm}


def identity(x: jax.Array) -> jax.Array:
    """Returns x. It replaces a norm or projection that a configuration does not have."""
    return x


def gather_positions(hidden: jax.Array, positions: jax.Array) -> jax.Array:
    """Returns the states of `hidden` [B, L, H] at `positions` int32 [B, K], as [B, K, H].

    It is a matmul with one-hot vectors, which is exact and takes under 0.1% of a step. Its gradient is also a
    matmul instead of a scatter.
    """
    selector = jax.nn.one_hot(positions, hidden.shape[1], dtype=hidden.dtype)
    return jnp.einsum("bkl,blh->bkh", selector, hidden, precision=jax.lax.Precision.HIGHEST)


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout at `rate`, which is 0 outside of training; `make_key` returns a new key at each call."""

    rate: float
    make_key: Callable[[], jax.Array]

    @property
    def key(self) -> jax.Array | None:
        """Returns a new key, or None without dropout."""
        return self.make_key() if self.rate else None

    def __call__(self, x: jax.Array) -> jax.Array:
        return dropout(x, self.make_key(), self.rate) if self.rate else x


class Module(nn.Module):
    """A module with a configuration, and constructors for submodules that depend on it."""

    config: EncoderConfig

    @property
    def dtype(self) -> jnp.dtype:
        """Returns the dtype of computations on the platform that is being traced for."""
        return jnp.dtype(dispatch.resolve_dtype(self.config.dtype, platform.target()))

    def dense(
        self,
        name: str | None,
        features: Sequence[int],
        in_axes: Sequence[str],
        out_axes: Sequence[str],
        *,
        use_bias: bool = True,
        is_output_projection: bool = False,
        split_gate: bool = False,
    ) -> Dense:
        """Returns a dense layer; `is_output_projection` is whether it is the last layer of a sublayer."""
        init = _INITIALIZERS[self.config.initializer](self.config)[is_output_projection]
        return Dense(features, in_axes, out_axes, init, self.dtype, use_bias, split_gate, name=name)

    def add_sublayer(
        self,
        x: jax.Array,
        norm: Callable[..., jax.Array],
        inner: Callable[[jax.Array], jax.Array],
        project: Callable[..., Any],
        drop: Dropout,
        adapter: Callable[[jax.Array], jax.Array] = identity,
    ) -> jax.Array:
        """Returns the states [B, L, H] after a sublayer f.

        With `norm_placement` "post" they are norm(x + dropout(f(x))) as in Vaswani et al. (2017), and with
        "pre" x + dropout(f(norm(x))) as in most later Transformers (Xiong et al. 2020). `inner` is f without
        its output projection `project`; `norm` and `project` may be the identity. The adapter, or the
        identity, is applied to the result after dropout.
        """
        config = self.config
        if config.norm_placement == "pre":
            return x + adapter(drop(project(inner(norm(x)))))
        # Initialization uses a few tokens, which the kernels do not support.
        if adapter is not identity or project is identity or self.is_initializing():
            has_kernel = False
        else:
            requested, (_, length, features) = config.attention, x.shape
            has_kernel = dispatch.fuses_norm(requested, config.norm, length, features, platform.target())
        if not has_kernel:
            return norm(x + adapter(drop(project(inner(x)))))
        h, bias = project(inner(x), separate_bias=True)
        return norm(x, functools.partial(residual_norm, x, h, bias, rate=drop.rate, key=drop.key))

    def norm(self, name: str | None = None) -> Norm:
        config = self.config
        return Norm(NORMS[config.norm], config.layer_norm_eps, self.dtype, config.norm_bias, name=name)

    def adapter(self, width: int) -> Callable[[jax.Array], jax.Array]:
        """Returns a bottleneck adapter, or the identity for a width of 0."""
        return Bottleneck(self.config, width) if width else identity

    def table(self, name: str, axes: Sequence[str], shape: Sequence[int], init: Initializer | None = None):
        """Returns a parameter whose rows are looked up."""
        init = init or _INITIALIZERS[self.config.initializer](self.config)[0]
        return self.param(name, nn.with_logical_partitioning(init, tuple(axes)), tuple(shape), jnp.float32)

    def dropout(self, rate: float, deterministic: bool) -> Dropout:
        """Returns dropout at `rate`, or no dropout if `deterministic`."""
        return Dropout(0.0 if deterministic else rate, lambda: self.make_rng("dropout"))

    def drop(self, x: jax.Array, deterministic: bool) -> jax.Array:
        """Returns x after dropout at `hidden_dropout_prob`."""
        return self.dropout(self.config.hidden_dropout_prob, deterministic)(x)


class Bottleneck(Module):
    """h + W_up gelu(W_down h + b_down) + b_up (Houlsby et al. 2019, section 2.1).

    The weights start so small that the module is nearly the identity. The GELU is the tanh form, as in the
    authors' code.
    """

    width: int = 0

    @nn.compact
    def __call__(self, h):
        """Returns [B, L, H] for states [B, L, H]."""
        init, hidden = kernel_init(_ADAPTER_STDDEV), self.config.hidden_size
        down = Dense((self.width,), ("embed",), (None,), init, self.dtype, name="down")
        up = Dense((hidden,), (None,), ("embed",), init, self.dtype, name="up")
        return h + up(ACTIVATIONS["gelu_tanh"](down(h)))
