"""Two functions are compared by their values and gradients."""

import jax
import numpy as np


def with_gradients(function, arrays, weights):
    """Returns the result, and the gradients of its sum with weights, from one program."""

    @jax.jit
    def run(arrays, weights):
        found, pull = jax.vjp(function, *arrays)
        return found, *pull(weights)

    return run(tuple(arrays), weights)


def assert_same(function, expected, arrays, weights, **tolerances):
    """Compares the results of two functions, and the gradients of their sums with weights."""
    both = (with_gradients(each, arrays, weights) for each in (function, expected))
    assert_close(*both, **tolerances)


def assert_close(found, expected, rtol=1e-5, atol=1e-5, scaled=False):
    """Compares arrays; if `scaled`, the absolute tolerance is relative to the largest value of each array."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(other).max() if scaled else 1
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol * scale)
