"""Matrix products with biases, computed in a chosen dtype with gradients accumulated in float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.kernels import dispatch, platform
from bert_jax.kernels.products import materialize, pack, product, unpack


def product_dtype(name: str) -> jnp.dtype:
    """Returns the dtype of matrix products that a name means on the platform being traced for.

    Args:
        name: "auto", "float32" or "bfloat16".
    """
    return jnp.dtype(dispatch.resolve_dtype(name, platform.target()))


def sum_rows(x: jax.Array) -> jax.Array:
    """Sums x [N, F] over its rows to float32 [F].

    On CPU it is a product with ones, because XLA's column sums are ten times slower there.
    """
    if platform.target_platform() != "cpu":
        return jnp.sum(x, axis=0, dtype=jnp.float32)
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.dot(ones, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)[0]


def _unfused(x: jax.Array) -> jax.Array:
    # XLA:TPU would fuse the cast of a kernel into the product, which then reads float32 for each tile of
    # rows, and the reshape of a kernel's gradient, which then needs transposed copies of its operands.
    return jax.lax.optimization_barrier(x) if platform.target_platform() == "tpu" else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, transposed: bool = False) -> jax.Array:
    """Returns x W + b, or x W' + b if `transposed`; gradients of W and b are accumulated in float32.

    Args:
        x: [N, I] float32 or bfloat16, which is the dtype of the product.
        kernel: float32 [I, O], or [O, I] if transposed.
        bias: float32 [O]; None for no bias.
        transposed: whether W is multiplied transposed.
    """
    return _dense_fwd(x, kernel, bias, transposed)[0]


def _dense_fwd(x, kernel, bias, transposed):
    kernel = kernel.astype(x.dtype)
    if not transposed:  # the word embeddings are large and are multiplied with few rows
        kernel = _unfused(kernel)
    y = product(x, kernel, (1, 1 if transposed else 0))
    kept = pack(x), pack(kernel)
    if bias is None:
        return y, (*kept, None)
    return y + bias.astype(x.dtype), (*kept, ())  # () instead of None records that there is a bias


def _dense_bwd(transposed, residuals, g):
    *kept, biased = residuals
    x, kernel = map(unpack, kept)
    if platform.target_platform() == "gpu":
        # That of logits is float32, and so would be its products. A TPU multiplies it as bfloat16 anyway, and
        # computes it within each product from the logits, where a cast would be an array of its own.
        g = g.astype(x.dtype)
    x, g = materialize(x), materialize(g)
    dx = product(g, kernel.astype(g.dtype), (1, 0 if transposed else 1))

    def outer(left, right):  # sum over rows of left[n] right[n]'
        return product(left, right, (0, 0), jnp.float32)

    # The left operand is the one that gets transposed, so it should be the narrower one.
    if transposed and platform.target_platform() == "cpu":
        dkernel = materialize(outer(x, g)).T  # XLA would swap the operands of the product again
    elif transposed:
        dkernel = outer(g, x)
    elif x.shape[1] <= g.shape[1] or platform.target_platform() == "cpu":
        dkernel = _unfused(outer(x, g))
    else:
        dkernel = _unfused(outer(g, x).T)
    return dx.astype(x.dtype), dkernel, None if biased is None else sum_rows(g)


dense.defvjp(_dense_fwd, _dense_bwd)


def dense_halves(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, rows: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """Returns the two halves [*rows, O] of x W + b, in which W has the shape [I, 2, O].

    Args:
        x: [N, I], as in `dense`.
        kernel: float32 [I, 2, O].
        bias: float32 [2, O]; None for no bias.
        rows: sizes whose product is N.
    """
    inputs, _, outputs = kernel.shape
    if platform.target_platform() == "tpu":
        # Two products: an array with a dimension of 2 before the lanes would be copied, or take a quarter of
        # the vector units.
        biases = (None, None) if bias is None else bias
        products = (dense(x, kernel[:, i], biases[i]) for i in range(2))
        first, second = (y.reshape(*rows, outputs) for y in products)
        return first, second
    y = dense(x, kernel.reshape(inputs, -1), None if bias is None else bias.reshape(-1))
    y = y.reshape(*rows, 2, outputs)
    if platform.target_platform() != "cpu" or platform.shards("mlp") > 1:
        return y[..., 0, :], y[..., 1, :]
    # The gradient of an index is a sum of padded halves, for which XLA:CPU computes each half twice.
    first, second = jnp.split(y.reshape(*rows, -1), 2, axis=-1)
    return first, second
