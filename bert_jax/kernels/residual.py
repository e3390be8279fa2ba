"""The norm of a half of a layer, and what is computed with it, as a single kernel.

`residual_norm` is the end of a half where norms follow the sums, and `norm_beside` the start of one where
they precede it. The kernels read or write every array of states once in either direction. Their masks of
dropout are bitwise equal to those of `dropout`: they are hashed from the element's position in both passes.

Each module of kernels has `run_by_rows` and the bodies of four kernels, functions of references to blocks:

- `after_forward`, of the words [B, 1, 4], the parameters [3, F] (bias, scale, offset), x and h [B, L, F]; it
  writes the result and the sum that the norm is of. `after_backward`, of the words, the parameters, the
  gradient of the result and that sum; it writes the gradients of x and h, and sums for the parameters.
- `before_forward`, of the parameters [2, F] (scale, offset) and x; it writes the norm. `before_backward`, of
  the parameters, x and the gradients of the norm and of x; it writes the gradient of x, and sums.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.dispatch import Choice, ResidualCase
from bert_jax.kernels.dropout import kernel_words
from bert_jax.kernels.gpu import residual as gpu_residual
from bert_jax.kernels.tpu import residual as tpu_residual

# Part of the operation's name, which tells these kernels from those of attention in a program.
SCOPE = "residual_norm"
_KERNELS: dict[str, ModuleType] = {"pallas": tpu_residual, "triton": gpu_residual}
_BY_ROW = ("batch", None, None)


def choose_here(requested: str, case: ResidualCase) -> Choice:
    """Returns the implementation to use, and why, for the platform being traced for.

    Args:
        requested: "auto", "xla" or the name of a kernel.
        case: what is computed.

    Raises:
        UserError: a kernel is requested by name and cannot compute this.
    """
    return dispatch.choose("residual", requested, case, platform.target())


@dataclasses.dataclass(frozen=True)
class _How:
    """How a norm is computed; `residual_norm` and `norm_beside` describe the fields."""

    implementation: str
    epsilon: float
    rate: float = 0.0
    centered: bool = True
    interpret: bool = False

    @property
    def kernels(self):
        return _KERNELS[self.implementation]

    def run(self, kernel, *arguments, **options):
        """Runs a kernel, which is given its settings, by rows."""
        return self.kernels.run_by_rows(kernel, *arguments, **options, interpret=self.interpret)


def residual_norm(
    implementation: str,
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

    On a CPU the kernel is interpreted, which is slow.

    Args:
        implementation: the name of a kernel.
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows for the kernel. On a mesh the
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
        UserError: the kernel cannot compute these shapes.
    """
    rows, length, features = x.shape
    dispatch.check_case("residual", implementation, ResidualCase(length, features))
    if key is None:
        rate = 0.0
    words = kernel_words(key if rate else None, rows)[:, None]
    how = _How(implementation, epsilon, rate, interpret=platform.interprets_kernels())
    kernel = functools.partial(_after, how)
    kernel = platform.on_each_device(kernel, (_BY_ROW, _BY_ROW, (None, None), _BY_ROW), _BY_ROW)
    with jax.named_scope(SCOPE):
        return kernel(x, h, jnp.stack([bias, scale, offset]), words)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _after(how, x, h, parameters, words):
    return _after_fwd(how, x, h, parameters, words)[0]


def _after_fwd(how, x, h, parameters, words):
    kernel = functools.partial(how.kernels.after_forward, epsilon=how.epsilon, rate=how.rate)
    out, total = how.run(kernel, (words, parameters), (x, h), results=2)
    return out, (total, parameters, words)


def _after_bwd(how, residuals, gradient):
    total, parameters, words = residuals
    kernel = functools.partial(how.kernels.after_backward, epsilon=how.epsilon, rate=how.rate)
    dx, dh, sums = how.run(kernel, (words, parameters), (gradient, total), results=2, sums=3)
    return dx, dh, jnp.sum(sums, axis=0), None


_after.defvjp(_after_fwd, _after_bwd)


def norm_beside(
    implementation: str,
    kind: str,
    x: jax.Array,
    scale: jax.Array,
    offset: jax.Array | None,
    epsilon: float,
) -> tuple[jax.Array, jax.Array]:
    """Returns the norm of x over the last dimension, with statistics in float32, and x.

    The gradient of x is computed from those of both results at once. On a CPU the kernel is interpreted,
    which is slow.

    Args:
        implementation: the name of a kernel.
        kind: "layernorm" or "rmsnorm".
        x: [B, L, F], float32 or bfloat16, of a shape that `dispatch` allows for the kernel. On a mesh the
            rows may be split.
        scale: float32 [F], the factor of the norm.
        offset: float32 [F], what the norm adds; None for 0.
        epsilon: added to the variance, or to the mean square.

    Returns:
        Two arrays [B, L, F] in the dtype of x.

    Raises:
        UserError: the kernel cannot compute these shapes.
    """
    _, length, features = x.shape
    dispatch.check_case("residual", implementation, ResidualCase(length, features, "pre", kind))
    interpret = platform.interprets_kernels()
    how = _How(implementation, epsilon, centered=kind == "layernorm", interpret=interpret)
    kernel = functools.partial(_before, how)
    kernel = platform.on_each_device(kernel, (_BY_ROW, (None, None)), [_BY_ROW, _BY_ROW])
    offset = jnp.zeros_like(scale) if offset is None else offset
    with jax.named_scope(SCOPE):
        return kernel(x, jnp.stack([scale, offset]))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _before(how, x, parameters):
    return _before_fwd(how, x, parameters)[0]


def _before_fwd(how, x, parameters):
    kernel = functools.partial(how.kernels.before_forward, epsilon=how.epsilon, centered=how.centered)
    (normed,) = how.run(kernel, (parameters,), (x,), results=1)
    return (normed, x), (x, parameters)


def _before_bwd(how, residuals, gradients):
    x, parameters = residuals
    kernel = functools.partial(how.kernels.before_backward, epsilon=how.epsilon, centered=how.centered)
    dx, sums = how.run(kernel, (parameters,), (x, *gradients), results=1, sums=2)
    return dx, jnp.sum(sums, axis=0)


_before.defvjp(_before_fwd, _before_bwd)
