"""Matmuls and dense layers, accumulated in float32, in the forms that are fast on each platform.

XLA:CPU multiplies bfloat16 arrays by AVX512_BF16 or AMX_BF16 if the result is float32, the last dimension of
the left operand is summed over, and both operands are row-major. Otherwise it casts them to float32, which
takes twice as long or more (benchmarks/NOTES.md). XLA folds transposes before and after a matmul into it only
after that choice, and the program then fails. Optimization barriers keep transposes and matmuls separate.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.kernels import platform

_LEAST = 8  # XLA uses a library's kernel if the largest size of the matmul is at least this


def materialize(x: jax.Array) -> jax.Array:
    """Returns x, which XLA must compute before its use on a CPU."""
    # XLA:CPU would fuse an elementwise producer into the transposed copy that a matmul needs, and then
    # compute it with strided access.
    return jax.lax.optimization_barrier(x) if platform.target_platform() == "cpu" else x


def pack(x: jax.Array) -> jax.Array:
    """Returns x in the form that is stored for the backward pass: on a CPU, bfloat16 bits as uint16.

    XLA:CPU stacks and slices bfloat16 arrays as float32. Residuals of a loop over layers would therefore be
    cast when each is stored, again as a whole between the two passes, and when each is read.
    """
    if platform.target_platform() == "cpu" and x.dtype == jnp.bfloat16:
        return jax.lax.bitcast_convert_type(x, jnp.uint16)
    return x


def unpack(packed: jax.Array) -> jax.Array:
    """Returns x from `pack(x)`."""
    return jax.lax.bitcast_convert_type(packed, jnp.bfloat16) if packed.dtype == jnp.uint16 else packed


def transposed(x: jax.Array) -> jax.Array:
    """Returns x [M, N] transposed, on a CPU as a row-major copy."""
    if platform.target_platform() != "cpu":
        return x.T
    return _by_rows(x.T)


def dot(
    left: jax.Array,
    right: jax.Array,
    summed: tuple[int, int],
    dtype: jax.typing.DTypeLike | None = jnp.float32,
) -> jax.Array:
    """Returns a plain matmul, which Pallas kernels can also use; the arguments are as for `matmul`."""
    dimensions = (((summed[0],), (summed[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=dtype)


def matmul(
    left: jax.Array, right: jax.Array, summed: tuple[int, int], dtype: jax.typing.DTypeLike | None = None
) -> jax.Array:
    """Returns the product of two matrices of one dtype, float32 or bfloat16, summed in float32.

    `summed` is the dimension of each that is summed over. The result has the operands' dtype or `dtype`.
    """
    if not _needs_form(left):
        return dot(left, right, summed, dtype)
    if summed[0] == 0:
        left, summed = transposed(left), (1, summed[1])
    return dot(left, right, summed).astype(dtype or left.dtype)


def einsum(spec: str, left: jax.Array, right: jax.Array, dtype: jax.typing.DTypeLike) -> jax.Array:
    """Returns the einsum of two arrays of one dtype, whose gradients are einsums of the same form.

    The arrays are float32 or bfloat16. `spec` is as for `jnp.einsum`, such as "bqnd,bknd->bnqk", with one
    letter that is summed over. `dtype` is the dtype of the result.
    """
    inputs, output = spec.split("->")
    first, second = inputs.split(",")
    sizes = dict(zip(first, left.shape, strict=True)) | dict(zip(second, right.shape, strict=True))
    matrix = [
        size for name, size in sizes.items() if not all(name in each for each in (first, second, output))
    ]
    # For vectors and the smallest matrices, XLA has no library kernel, and its own can abort in this form.
    if _needs_form(left) and min(matrix) > 1 and max(matrix) >= _LEAST:
        return _einsum(spec, left, right, dtype)
    return jnp.einsum(spec, left, right, preferred_element_type=dtype)


def _by_rows(x: jax.Array) -> jax.Array:
    """Returns a transposed array as a copy."""
    # XLA keeps the old memory order of a transposed array until it is reshaped.
    return jax.lax.optimization_barrier(x.reshape(1, *x.shape))[0]


def _needs_form(x: jax.Array) -> bool:
    return platform.target_platform() == "cpu" and x.dtype == jnp.bfloat16


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def _einsum(spec, left, right, dtype):
    return _einsum_forward(spec, left, right, dtype)[0]


def _einsum_forward(spec, left, right, dtype):
    inputs, output = spec.split("->")
    return _in_form((left, right), inputs.split(","), output, dtype), (pack(left), pack(right))


def _einsum_backward(spec, dtype, operands, g):
    inputs, output = spec.split("->")
    names = inputs.split(",")
    operands = [unpack(x) for x in operands]
    g = materialize(g.astype(operands[0].dtype))
    return tuple(
        _in_form((operands[1 - i], g), [names[1 - i], output], names[i], operands[i].dtype) for i in range(2)
    )


_einsum.defvjp(_einsum_forward, _einsum_backward)


def _in_form(operands, names, output, dtype):
    """Returns the einsum of operands with these names of dimensions."""
    both = [x for x in names[0] if x in names[1]]
    (summed,) = (x for x in both if x not in output)
    # The left operand may be transposed, so it should be the smaller one.
    order = sorted(range(2), key=lambda i: (names[i][-1] != summed, operands[i].size))
    (left, right), (first, second) = [operands[i] for i in order], [names[i] for i in order]
    batch = [x for x in both if x != summed]
    natural = [*batch, *(x for x in first if x not in both), *(x for x in second if x not in both)]
    in_rows = [*natural[: left.ndim - 1], summed]
    if list(first) != in_rows:
        left = _by_rows(left.transpose(tuple(map(first.index, in_rows))))
    dimensions = (
        ((left.ndim - 1,), (second.index(summed),)),
        (tuple(range(len(batch))), tuple(map(second.index, batch))),
    )
    result = jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)
    places = tuple(map(natural.index, output))
    if places != tuple(range(result.ndim)):
        result = materialize(result).transpose(places)
    return result.astype(dtype)


def sum_rows(x: jax.Array) -> jax.Array:
    """Sums x [N, F] over its rows to float32 [F].

    On a CPU it is a matmul with ones, because XLA's column sums are ten times slower.
    """
    if platform.target_platform() != "cpu":
        return jnp.sum(x, axis=0, dtype=jnp.float32)
    ones = jnp.ones((1, x.shape[0]), x.dtype)
    return jnp.dot(ones, x, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)[0]


def _unfused(x: jax.Array) -> jax.Array:
    # XLA:TPU would fuse the cast of a kernel into the matmul, which then reads float32 for each tile of rows,
    # and the reshape of a kernel's gradient, which then needs transposed copies of its operands.
    return jax.lax.optimization_barrier(x) if platform.target_platform() == "tpu" else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def dense(x: jax.Array, kernel: jax.Array, bias: jax.Array | None, transposed: bool = False) -> jax.Array:
    """Returns x W + b, or x W' + b if `transposed`; gradients of W and b are accumulated in float32.

    x [N, I] is float32 or bfloat16, which is the dtype of the matmul. The kernel is float32 [I, O], or W',
    [O, I], if `transposed`. The bias is float32 [O], or None.
    """
    return _dense_fwd(x, kernel, bias, transposed)[0]


def _dense_fwd(x, kernel, bias, transposed):
    kernel = kernel.astype(x.dtype)
    if not transposed:  # the word embeddings are large and are multiplied with few rows
        kernel = _unfused(kernel)
    y = matmul(x, kernel, (1, 1 if transposed else 0))
    packed = pack(x), pack(kernel)
    if bias is None:
        return y, (*packed, None)
    return y + bias.astype(x.dtype), (*packed, ())  # () instead of None records that there is a bias


def _dense_bwd(transposed, residuals, g):
    *packed, biased = residuals
    x, kernel = map(unpack, packed)
    if platform.target_platform() == "gpu":
        # The gradient of logits is float32, which would make its matmuls float32. A TPU multiplies it as
        # bfloat16, and computes it within each matmul from the logits, where a cast would be another array.
        g = g.astype(x.dtype)
    x, g = materialize(x), materialize(g)
    dx = matmul(g, kernel.astype(g.dtype), (1, 0 if transposed else 1))

    def outer(left, right):  # sum over rows of left[n] right[n]'
        return matmul(left, right, (0, 0), jnp.float32)

    # The left operand is transposed, so it should be the narrower one.
    if transposed and platform.target_platform() == "cpu":
        dkernel = materialize(outer(x, g)).T  # XLA would swap the operands of the matmul again
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
    """Returns the halves [*rows, O] of x W + b for x [N, I], a kernel [I, 2, O] and a bias [2, O] or None."""
    inputs, _, outputs = kernel.shape
    if platform.target_platform() == "tpu":
        # These are two matmuls, because an array with a dimension of 2 before the lanes would be copied, or
        # use a quarter of the vector units.
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
